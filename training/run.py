"""Make and compare models by a recipe: `python -m pasta_async.training.run RECIPE`.

Everything goes to one folder: data, models (`stage1/NAME/model`, `round2/lambda4/model`), samples, what was
measured, a report. What is done is skipped; after Ctrl-C, a crash or `kill -9` the same command goes on. A
step whose settings or inputs changed is done again, with all that depends on it.
"""

from __future__ import annotations

import fcntl
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
from pydantic import BaseModel, ConfigDict, Field

from pasta_async.cli.command import run_command
from pasta_async.errors import BackendConnectError, TrainingError
from pasta_async.training.recipe import find_recipe, read_recipe
from pasta_async.training.steps import SERVED, Plan, as_arguments, check_options, needed

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pasta_async.training.recipe import Serving
    from pasta_async.training.steps import Step

__all__ = ["RunSettings", "main", "run", "run_steps", "serve"]

_FREE = {
    *("device", "attention", "recompute", "save_every", "keep", "log_every", "track", "threads", "stop_at"),
    *("ignore_memory", "in_flight", "retries", "timeout", "key_variable", "together"),
}
"""Options that change how a command works, and nothing of its result but for rounding."""

_SMALL = 1 << 20
"""Bytes up to which a file that is read counts with its content, above with name and size alone."""

_SERVER_STOP = 30.0
"""Seconds that a server has to end in."""


class RunSettings(BaseModel):
    """What to run. Every field is an option of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    recipe: str = Field(description="a TOML file, or the name of a packaged one: pasta-tiny, llama-8b, smoke")
    out: Path | None = Field(default=None, description="folder of the run (default: runs/RECIPE)")
    only: tuple[str, ...] = Field(default=(), description="run just what this step needs: round2/lambda4")
    set: tuple[str, ...] = Field(default=(), description="a value over the recipe's: stage2.rounds=1")
    dry_run: bool = Field(default=False, description="show every command, run none")


def run(settings: RunSettings) -> None:
    """Plan, run what is due, report.

    Raises:
        PastaError: The recipe does not fit, before anything is run; or a step failed.
    """
    path = find_recipe(settings.recipe)
    recipe = read_recipe(path, settings.set)
    out = settings.out or Path("runs") / path.stem
    plan = Plan(recipe, out)
    steps = needed(plan.steps, settings.only)
    check_options(steps)
    if settings.dry_run:
        for step in steps:
            print(f"# {step.name}\n{shlex.join(command(step))}")
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.json").write_text(json.dumps(plan.described(), indent=1) + "\n", encoding="utf-8")
    run_steps(steps, out, recipe.serving)
    subprocess.run([sys.executable, "-m", "pasta_async.evals.report", str(out)], check=True)


def run_steps(steps: Sequence[Step], out: Path, serving: Serving | None = None) -> None:
    """Run the steps that are not done, one after another.

    OUT/steps/NAME.json says how far a step is. If another run in this folder is at a step, it is waited for.

    Args:
        steps: Each behind those that it needs.
        out: The folder of the run.
        serving: How models are served meanwhile, if they are.

    Raises:
        TrainingError: A step failed, or left no result.
        BackendConnectError: A server of `serving` did not start.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the step at work was told to leave, and has.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        stamps = _stamps(steps, out)
        for number, step in enumerate(steps, start=1):
            record = out / "steps" / f"{step.name}.json"
            record.parent.mkdir(parents=True, exist_ok=True)
            with record.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _finished(record, stamps[step.name]):
                    print(f"[{number}/{len(steps)}] {step.name}", flush=True)
                    _run_step(step, out, record, stamps[step.name], lock.fileno(), serving)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_step(step: Step, out: Path, record: Path, stamp: str, lock: int, serving: Serving | None) -> None:
    known = _read(record)
    if known and known["stamp"] != stamp:
        shutil.rmtree(out / step.name, ignore_errors=True)
        known = {}
    (out / step.name).mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"stamp": stamp, "seconds": 0.0} | known | {"finished": False}
    _write(record, state)
    start = time.monotonic()
    try:
        with ExitStack() as stack:
            addresses = serve(step, serving, stack) if serving else {}
            # The process has the lock as well: if this one is killed, nobody starts the step beside it.
            process = stack.enter_context(
                subprocess.Popen(command(step, addresses), stdin=subprocess.DEVNULL, pass_fds=[lock])
            )
            stack.callback(process.terminate)
            status = process.wait()
        if status or not step.result.exists():
            raise TrainingError(f"{step.name} ended with status {status}" + " and no result" * (not status))
        state["finished"] = True
    finally:
        state["seconds"] = round(state["seconds"] + time.monotonic() - start, 1)
        _write(record, state)


def command(step: Step, addresses: Mapping[str, str] | None = None) -> list[str]:
    """The command line of a step, with addresses for models that are served."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(step.processes)]
    arguments = [(addresses or {}).get(word, word) for word in as_arguments(step.options)]
    return [sys.executable, *(torchrun if step.processes > 1 else []), "-m", step.module, *arguments]


# What is done


def _stamps(steps: Sequence[Step], out: Path) -> dict[str, str]:
    """By name of each step a hash of its settings and inputs: with another one it is another result."""
    found: dict[str, str] = {}
    for step in steps:
        same = as_arguments({key: value for key, value in step.options.items() if key not in _FREE})
        parts = [step.module, *(word.replace(f"{out}/", "OUT/") for word in same)]
        parts += [found[need.name] for need in step.needs] + [_content(path) for path in step.reads]
        found[step.name] = sha256("\0".join(parts).encode()).hexdigest()[:24]
    return found


def _content(path: Path) -> str:
    """Stands for a file or a folder: the content of small files, name and size of large ones."""
    if path.is_dir():
        return "\0".join(_content(one) for one in sorted(path.iterdir()) if one.is_file())
    size = path.stat().st_size
    return f"{path.name} {size} {sha256(path.read_bytes()).hexdigest() if size <= _SMALL else ''}"


def _finished(record: Path, stamp: str) -> bool:
    known = _read(record)
    return bool(known) and known["finished"] and known["stamp"] == stamp


def _read(record: Path) -> dict[str, Any]:
    return json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}


def _write(record: Path, state: Mapping[str, Any]) -> None:
    draft = record.with_suffix(".part")
    draft.write_text(json.dumps(state) + "\n", encoding="utf-8")
    draft.replace(record)


# Servers


def serve(step: Step, serving: Serving, stack: ExitStack) -> dict[str, str]:
    """Start a server for each model of a step that is to be served; their addresses, when all are healthy.

    Args:
        step: With models behind `SERVED` among its options.
        serving: The recipe's table.
        stack: Ends the servers when it is closed.

    Raises:
        BackendConnectError: A server ended, or is not ready in time, or its port is taken.
    """
    models = dict.fromkeys(word for word in as_arguments(step.options) if word.startswith(SERVED))
    return {word: stack.enter_context(_server(word, number, serving)) for number, word in enumerate(models)}


@contextmanager
def _server(word: str, number: int, serving: Serving) -> Generator[str]:
    port, gpu = serving.port + number, number * serving.gpus
    model = word.removeprefix(SERVED)
    words = [part.format(model=model, port=port, gpu=gpu) for part in shlex.split(serving.command)]
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + serving.start_timeout
    if _healthy(url):
        raise BackendConnectError(f"{url} is taken already: end that server, or set serving.port")
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        while not _healthy(url):
            if process.poll() is not None:
                raise BackendConnectError(f"{shlex.join(words)} ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise BackendConnectError(
                    f"{shlex.join(words)} is not ready after {serving.start_timeout:g} s"
                )
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_SERVER_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).is_success
    except httpx.HTTPError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    run_command(
        RunSettings,
        run,
        program="pasta_async.training.run",
        description=__doc__,
        positional=("recipe",),
        arguments=arguments,
        resumes=True,
    )


if __name__ == "__main__":
    main()
