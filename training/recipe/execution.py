"""Run the steps of a plan, each in a process of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from tqdm import tqdm

from pasta_async.errors import InvalidRequestError, TrainingError
from pasta_async.training.recipe.ledger import KEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from pasta_async.training.recipe.ledger import Ledger
    from pasta_async.training.recipe.step import Step

__all__ = ["Work", "execute"]

_LOOK = 0.5
"""Seconds between two looks at the steps that work."""
_LEAVE = 60.0
"""Seconds that a step has to leave in, and that another run waits for one to do so."""


def execute(steps: Sequence[Step], ledger: Ledger, out: Path, jobs: int = 1) -> None:
    """Run the steps that are not done; what they say goes to OUT/logs.

    Args:
        steps: Each behind those that it needs.
        ledger: Knows what is done.
        out: The folder of the run.
        jobs: Steps at a time. A step that measures time runs alone, and waits for all that need not.

    Raises:
        TrainingError: A step failed; the message has the end of its log. Others at work have left.
        InvalidRequestError: Another run works in the folder.
        KeyboardInterrupt: Ctrl-C or SIGTERM, which the steps at work were told, too. They have left.
    """
    due = [step for step in steps if not ledger.finished(step)]
    with (
        _alone(out) as lock,
        _terminable(),
        ledger.running() as keep,
        _overall(len(steps), len(steps) - len(due)) as show,
    ):
        working: list[Work] = []
        try:
            while due or working:
                for step in _startable(due, [work.step for work in working], jobs):
                    due.remove(step)
                    working.append(Work(step, ledger, out / "logs" / f"{step.name}.log", lock))
                time.sleep(_LOOK)
                keep()
                for work in [work for work in working if work.left()]:
                    working.remove(work)
                    work.finish()
                    show(work.step.name, "done", 1)
                for work in working:
                    show(work.step.name, _last_words(work.log))
        finally:
            _end(working)


def _startable(due: Sequence[Step], working: Sequence[Step], jobs: int) -> list[Step]:
    """Which steps can begin now, beside those at work."""
    missing = {step.name for step in (*due, *working)}
    ready = [step for step in due if not any(need.name in missing for need in step.needs)]
    together = [step for step in ready if not step.alone] if jobs > 1 else []
    if together and not any(step.alone for step in working):
        return together[: jobs - len(working)]
    return ready[: 1 - len(working)] if not working else []


class Work:
    """A step at work, in a process of its own."""

    def __init__(self, step: Step, ledger: Ledger, log: Path, lock: int) -> None:
        self.step: Step = step
        self.log: Path = log
        self._ledger = ledger
        self._done = ledger.begin(step)
        self._before, self._began = self._done.seconds, time.monotonic()
        self._kept = self._began
        log.parent.mkdir(parents=True, exist_ok=True)
        step.output.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said:
            said.write(f"\n$ {step.shown}\n".encode())
            said.flush()
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # so that Ctrl-C reaches it once, from here
                pass_fds=[lock],
                preexec_fn=partial(_die_with, os.getpid()),
            )

    def left(self) -> bool:
        """Whether it has left. Its time is kept count of, even if this process is killed meanwhile."""
        if self.process.poll() is not None:
            self.count()
            return True
        if time.monotonic() - self._kept > KEEP:
            self._kept = time.monotonic()
            self.count()
        return False

    def count(self) -> None:
        """Write down its time."""
        self._done.seconds = round(self._before + time.monotonic() - self._began, 1)
        self._ledger.write(self.step, self._done)

    def finish(self) -> None:
        """Look at what it left behind."""
        if status := self.process.returncode:
            raise TrainingError(
                f"{self.step.name} failed (status {status}); {self.log} ends:\n{_tail(self.log)}"
            )
        if not self.step.result.exists():
            raise TrainingError(
                f"{self.step.name} left without {self.step.result}; {self.log} ends:\n{_tail(self.log)}"
            )
        self._done.finished = True
        self.count()


def _end(working: Sequence[Work]) -> None:
    """Ask steps to leave, as a scheduler would; insist when one does not, or at a second Ctrl-C."""
    for work in working:
        work.process.terminate()
    try:
        for work in working:
            work.process.wait(_LEAVE)
            work.count()
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for work in working:
            with suppress(ProcessLookupError):
                os.killpg(work.process.pid, signal.SIGKILL)
            work.process.wait()


def _die_with(parent: int) -> None:
    """In a step's process: SIGTERM when the run is killed. Linux knows how; elsewhere the lock has to do."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


@contextmanager
def _alone(out: Path) -> Generator[int]:
    """Hold the folder. The step at work holds it too, so nobody goes on while one is still leaving."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("a") as lock:
        for attempt in range(int(_LEAVE)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not attempt:
                    print(f"another run is at work in {out}; waiting for it to leave", file=sys.stderr)
                time.sleep(1)
        else:
            raise InvalidRequestError(f"another run is at work in {out}: let it end, or choose another --out")
        yield lock.fileno()


@contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM does as Ctrl-C."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _overall(total: int, done: int) -> Generator[Callable[..., None]]:
    """One bar over all steps; where nobody watches, a line when a step is done."""
    watched = sys.stderr.isatty()
    with tqdm(total=total, initial=done, unit="step", dynamic_ncols=True, disable=not watched) as bar:
        count = done

        def show(name: str, words: str, advance: int = 0) -> None:
            nonlocal count
            count += advance
            bar.update(advance)
            bar.set_description_str(name, refresh=False)
            bar.set_postfix_str(words)
            if advance and not watched:
                print(f"[{count}/{total}] {name}", flush=True)

        yield show


def _tail(log: Path, size: int = 2000) -> str:
    content = log.read_bytes()[-size:].decode(errors="replace")
    lines = [line.rpartition("\r")[2] for line in content.splitlines()]
    return "\n".join(f"  {line}" for line in lines[-15:] if line.strip())


def _last_words(log: Path) -> str:
    with log.open("rb") as said:
        said.seek(max(0, log.stat().st_size - 400))
        words = said.read().decode(errors="replace").replace("\r", "\n").strip()
    return words.rpartition("\n")[2][-60:]
