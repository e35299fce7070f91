"""kill -9 of every long command at moments that are drawn: in the end it leaves what it leaves undisturbed.

The commands run in forks of a process that has imported what they need, so that a kill meets their work, not
their imports. Which of their files are alike, whenever a command runs, is seen in two undisturbed runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from pasta_async.training import run as recipe
from tests.torture.measured import Plan
from tests.training.annotator_server import running_annotator
from tests.training.steps_here import StepHere

SMALLEST = (
    *("base.steps=4", "data.synthetic.count=8", "stage2.rounds=1", "stage2.sample.max_tokens=30"),
    "evaluation.max_tokens=20",
)
RECIPE = ("smoke", *(word for value in SMALLEST for word in ("--set", value)))
ALL = ("--only", "evaluation/round1/lambda4")
"""Steps of every kind; the recipe itself is killed on the way to the first model."""
RUN = "pasta_async.training.run"
KILLED = {
    "stage1/noisy": "finetune",
    "samples/round1": "sample",
    "scores/round1": "score",
    "round1/lambda4": "prefer",
    "evaluation/round1/lambda4": "evals",
}
"""Steps of the recipe, and what their commands are called."""

TIMES = {"started", "first_token", "ended", "elapsed", "seconds", "finished", "time", "load"}
"""Fields that tell when, how long, or what else the machine did."""

OF_ONE_RUN = "summary.json"
"""A file that tells what the last run did, not what there is in the end."""

MOST_KILLS = 4
"""Of one run; then it is left to end."""


class Work(NamedTuple):
    """A command that writes to a folder."""

    module: str
    arguments: list[str]
    out: Path

    def child(self, log: Path) -> int:
        """Start it in a fork; its process id."""
        if pid := os.fork():
            return pid
        status = 1
        try:
            os.setpgid(0, 0)
            with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
                status = self.here()
        finally:
            os._exit(status)

    def here(self) -> int:
        """Run it in this process; its exit status. The steps of a recipe are run in it, too."""
        own = SimpleNamespace(Popen=StepHere, DEVNULL=subprocess.DEVNULL, run=StepHere)
        setattr(recipe, "subprocess", own)  # noqa: B010 - it is no name that the module gives away
        try:
            importlib.import_module(self.module).main(self.arguments)
        except SystemExit as left:
            return left.code if isinstance(left.code, int) else int(left.code is not None)
        return 0


def finish(work: Work, log: Path, kills: list[float]) -> int:
    """Kill the command after each of these seconds, then let it end; how many kills it met at work."""
    met = 0
    for seconds in kills:
        pid = work.child(log)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
            met += 1
        else:
            break
    status = os.waitpid(work.child(log), 0)[1]
    assert status == 0, f"{shlex.join(work.arguments)} ended with {status}:\n{log.read_text()[-3000:]}"
    return met


def files(out: Path) -> dict[str, str]:
    """Hashes of what a command left, by names; rows of JSON in any order, and without times."""
    paths = [path for path in sorted(out.rglob("*")) if path.is_file()] if out.is_dir() else [out]
    found = {path: path.read_bytes() for path in paths if path.name != OF_ONE_RUN}
    found |= {path: _timeless(raw) for path, raw in found.items() if path.suffix in (".json", ".jsonl")}
    return {str(path.relative_to(out)): hashlib.sha256(raw).hexdigest() for path, raw in found.items()}


def _timeless(raw: bytes) -> bytes:
    def read(text: bytes) -> Any:
        return json.loads(text, object_pairs_hook=lambda pairs: [p for p in pairs if p[0] not in TIMES])

    try:
        rows = [read(raw)]
    except ValueError:
        rows = [read(line) for line in raw.splitlines()]
    return "\n".join(sorted(map(json.dumps, rows))).encode()


class Trial:
    """A command, what it leaves undisturbed, and how long that takes."""

    def __init__(self, work: Work, log: Path) -> None:
        self.work, self.log = work, log
        self.wanted = self._undisturbed()
        began = time.monotonic()
        again = self._undisturbed()
        self.seconds = time.monotonic() - began
        self.wanted = {name: found for name, found in self.wanted.items() if again.get(name) == found}
        assert self.wanted, f"{work.module} leaves nothing that is alike in two runs"

    def _undisturbed(self) -> dict[str, str]:
        self._clean()
        finish(self.work, self.log, [])
        return files(self.work.out)

    def _clean(self) -> None:
        shutil.rmtree(self.work.out, ignore_errors=True)
        for path in self.work.out.parent.glob(f"{self.work.out.stem}.*"):  # a file, and its journal
            path.unlink()

    def disturbed(self, drawn: random.Random) -> int:
        """Kill it some times: in the end it leaves the same (AssertionError); how many kills it met."""
        self._clean()
        kills = [drawn.uniform(0, self.seconds) for _ in range(drawn.randint(1, MOST_KILLS))]
        met = finish(self.work, self.log, kills)
        found = files(self.work.out)
        differ = [name for name, wanted in self.wanted.items() if found.get(name) != wanted]
        assert not differ, f"{self.work.module}, killed after {kills} s: {differ} differ"
        return met


def trials(folder: Path, annotator: str) -> Iterator[tuple[str, Trial]]:
    """Every long command at its smallest, in a folder of its own."""
    log = folder / "log"
    finish(Work(RUN, [*RECIPE, *ALL, "--out", "OUT"], Path("OUT")), log, [])
    short = [*RECIPE, "--only", "stage1/noisy", "--out", "recipe"]
    yield "run", Trial(Work(RUN, short, Path("recipe")), log)
    for step, module, arguments in _steps(log):
        if name := KILLED.get(step):
            at = arguments.index("--out") + 1
            out = Path(arguments[at].replace("OUT", "again"))
            out.parent.mkdir(parents=True, exist_ok=True)
            arguments[at] = str(out)
            yield name, Trial(Work(module, arguments, out), log)
    asked = ["--data", "OUT/data/noisy/records.jsonl", "--out", "annotated", "--ask-from", "0"]
    asked += ["--base-url", annotator, "--model", "annotator", "--in-flight", "2"]
    yield "annotate", Trial(Work("pasta_async.training.annotate.annotator", asked, Path("annotated")), log)


def _steps(log: Path) -> list[tuple[str, str, list[str]]]:
    """Name, module and arguments of each step of the recipe."""
    plan = log.with_name("plan")
    finish(Work(RUN, [*RECIPE, *ALL, "--out", "OUT", "--dry-run"], Path("OUT")), plan, [])
    lines = plan.read_text().splitlines()
    commands = [shlex.split(line) for line in lines[1::2]]
    names = [line.removeprefix("# ") for line in lines[::2]]
    return [(name, words[2], words[3:]) for name, words in zip(names, commands, strict=True)]


@contextmanager
def annotating() -> Generator[str]:
    """An annotator in a process of its own, since a process that forks must have no threads; its URL."""
    told, tells = os.pipe()
    if not (pid := os.fork()):
        with running_annotator() as annotator:
            os.write(tells, annotator.url.encode())
            signal.pause()
    try:
        yield os.read(told, 1000).decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def kill_commands(plan: Plan) -> dict[str, Any]:
    """Kill each command in turn, for as long as is planned; the figures."""
    for module in ("torch", "transformers", "pasta_async.training.finetune", "pasta_async.training.prefer"):
        importlib.import_module(module)
    killed, runs = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), annotating() as url:
        made = list(trials(Path(folder), url))
        plan = replace(plan, began=time.monotonic())
        for number in plan.numbers():
            name, trial = made[number % len(made)]
            killed[name] += trial.disturbed(plan.random(number))
            runs[name] += 1
    return {
        "kills": killed.total(),
        "of": killed,
        "runs": runs.total(),
        "files that were compared": {name: len(trial.wanted) for name, trial in made},
        "seconds": round(plan.elapsed),
    }
