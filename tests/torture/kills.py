"""kill -9 of every long command at moments that are drawn: in the end it leaves what it leaves undisturbed.

The commands run in forks of a process that has imported what they need, so that a kill meets their work, not
their imports. Which of their files are alike, whenever a command runs, is seen in two undisturbed runs. A
measurement of time has such that are not: of these its journal is compared, without the times.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.torture.commands import NAMES, Work, commands
from tests.torture.measured import Plan

OF_THE_MACHINE = {
    *(
        "started",
        "first_token",
        "ended",
        "elapsed",
        "seconds",
        "finished",
        "tokens_per_second",
        "arrived",
        "time",
        "load",
    ),
    *("environment", "cached_tokens", "prefilled_tokens"),
}
"""Fields that tell when, how long, where, what else the machine did, and what its cache happened to hold."""

OF_ONE_RUN = "summary.json"
"""A file that tells what the last run did, not what there is in the end."""

MOST_KILLS = 4
"""Of one run; then it is left to end."""


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
    work.finish(log)
    return met


def files(out: Path) -> dict[str, str]:
    """Hashes of what a command left, by names; rows of JSON in any order, without fields of the machine."""
    paths = [path for path in sorted(out.rglob("*")) if path.is_file()] if out.is_dir() else [out]
    found = {path: path.read_bytes() for path in paths if path.name != OF_ONE_RUN}
    found |= {path: _of_any_machine(raw) for path, raw in found.items() if path.suffix in (".json", ".jsonl")}
    return {str(path.relative_to(out)): hashlib.sha256(raw).hexdigest() for path, raw in found.items()}


def _of_any_machine(raw: bytes) -> bytes:
    def read(text: bytes) -> Any:
        return json.loads(
            text, object_pairs_hook=lambda pairs: [p for p in pairs if p[0] not in OF_THE_MACHINE]
        )

    try:
        rows = [read(raw)]
    except ValueError:
        rows = [read(line) for line in raw.splitlines()]
    return "\n".join(sorted(json.dumps(row) for row in rows if row)).encode()


class Trial:
    """A command, what it leaves undisturbed, and how long that takes."""

    def __init__(self, work: Work, log: Path) -> None:
        self.work, self.log = work, log
        self.wanted = self._undisturbed()
        began = time.monotonic()
        again = self._undisturbed()
        self.seconds = time.monotonic() - began
        self.left_out = sorted(name for name, found in self.wanted.items() if again.get(name) != found)
        """Files that are never alike."""
        for name in self.left_out:
            del self.wanted[name]
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
        differ += found.keys() - self.wanted.keys() - {*self.left_out}
        assert not differ, f"{self.work.module}, killed after {kills} s: {differ} differ"
        return met


def kill_commands(plan: Plan) -> dict[str, Any]:
    """Kill each command in turn, for as long as is planned; the figures."""
    killed, runs, names = Counter[str](), Counter[str](), plan.only or NAMES
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        log = Path(folder) / "log"
        with commands(names, log) as works:
            _import_all(works.values())
            made = {name: Trial(work, log) for name, work in works.items()}
            plan = replace(plan, began=time.monotonic())
            for number in plan.numbers():
                name = names[number % len(names)]
                killed[name] += made[name].disturbed(plan.random(number))
                runs[name] += 1
    return {
        "kills": killed.total(),
        "of": killed,
        "runs": runs.total(),
        "files that were compared": {name: len(trial.wanted) for name, trial in made.items()},
        "files that no two runs have alike": {
            n: trial.left_out for n, trial in made.items() if trial.left_out
        },
        "seconds of an undisturbed run": {name: round(trial.seconds, 1) for name, trial in made.items()},
        "seconds": round(plan.elapsed),
    }


def _import_all(works: Iterable[Work]) -> None:
    """A kill is to meet what the commands do, not their imports."""
    os.environ.setdefault("LOGNAME", "torture")  # without a user name AlpacaEval cannot be imported
    os.environ.setdefault("PYTHON_DOTENV_DISABLED", "1")
    for module in ("typer", "pasta_async.backends.local.engine", "pasta_async.backends.local.opening"):
        importlib.import_module(module)
    for work in works:
        importlib.import_module(work.module)
        if work.module.endswith(".alpaca"):
            importlib.import_module("alpaca_eval.annotators")
