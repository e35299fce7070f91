"""Run the steps of a plan one after another, each in a process of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tqdm import tqdm

from pasta_async.errors import InvalidRequest, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from pasta_async.training.recipe.ledger import Done, Ledger
    from pasta_async.training.recipe.step import Step

__all__ = ["execute"]

_LOOK = 1.0
"""Seconds between two looks at a step that works."""
_KEEP = 5.0
"""Seconds of a step that a kill may leave out of the count."""
_LEAVE = 60.0
"""Seconds that a step has to leave in, and that another run waits for one to do so."""


def execute(steps: Sequence[Step], ledger: Ledger, out: Path) -> None:
    """Run the steps that are not done, one after another; what they say goes to OUT/logs.

    Args:
        steps: Each behind those that it needs.
        ledger: Knows what is done.
        out: The folder of the run.

    Raises:
        TrainingError: A step failed; the message has the end of its log.
        InvalidRequest: Another run works in the folder.
        KeyboardInterrupt: Ctrl-C or SIGTERM, which the step at work was told, too. It has left.
    """
    due = [step for step in steps if not ledger.finished(step)]
    with _alone(out) as lock, _terminable(), _overall(len(steps), len(steps) - len(due)) as show:
        for step in due:
            _run(step, ledger, out / "logs" / f"{step.name}.log", lock, partial(show, step.name))
            show(step.name, "done", 1)


def _run(step: Step, ledger: Ledger, log: Path, lock: int, show: Callable[[str], None]) -> None:
    done = ledger.begin(step)
    log.parent.mkdir(parents=True, exist_ok=True)
    step.output.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        said.write(f"\n$ {step.shown}\n".encode())
        said.flush()
        process = subprocess.Popen(
            step.command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # so that Ctrl-C reaches it once, from here
            pass_fds=[lock],
            preexec_fn=partial(_die_with, os.getpid()),
        )
        try:
            status = _watch(process, step, ledger, done, lambda: show(_last_words(log)))
        except KeyboardInterrupt:
            _end(process)
            raise
    if status:
        raise TrainingError(f"{step.name} failed (status {status}); {log} ends:\n{_tail(log)}")
    if not step.result.exists():
        raise TrainingError(f"{step.name} left without {step.result}; {log} ends:\n{_tail(log)}")
    done.finished = True
    ledger.write(step, done)


def _watch(
    process: subprocess.Popen[bytes], step: Step, ledger: Ledger, done: Done, look: Callable[[], None]
) -> int:
    """Wait for its end, keeping count of its time even if this process is killed meanwhile."""
    before, began = done.seconds, time.monotonic()
    kept = began
    try:
        while True:
            try:
                return process.wait(_LOOK)
            except subprocess.TimeoutExpired:
                look()
            if (now := time.monotonic()) - kept > _KEEP:
                kept, done.seconds = now, round(before + now - began, 1)
                ledger.write(step, done)
    finally:
        done.seconds = round(before + time.monotonic() - began, 1)
        ledger.write(step, done)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a step to leave, as a scheduler would; insist when it does not, or at a second Ctrl-C."""
    process.terminate()
    try:
        process.wait(_LEAVE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
            raise InvalidRequest(f"another run is at work in {out}: let it end, or choose another --out")
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
