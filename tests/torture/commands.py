"""Every long command at its smallest, and what it reads, to be killed by `tests.torture.kills`."""

from __future__ import annotations

import importlib
import json
import os
import random
import shlex
import signal
import subprocess
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch

from pasta_async.training import run as recipe
from pasta_async.training.synthetic import FAMILIES, sample
from tests.evals.judge_server import judging
from tests.pasta_tiny import LOCAL_TINY
from tests.torture.engines import SHIPPED
from tests.training.annotator_server import running_annotator
from tests.training.steps_here import StepHere

# The recipe and its steps ------------------------------------------------------------------------------

RUN = "pasta_async.training.run"
SMALLEST = (
    *("base.steps=4", "data.synthetic.count=8", "stage2.rounds=1", "stage2.sample.max_tokens=30"),
    "evaluation.max_tokens=20",
)
RECIPE = ("smoke", *(word for value in SMALLEST for word in ("--set", value)))
ALL = ("--only", "evaluation/round1/lambda4")
"""Steps of every kind; the recipe itself is killed on the way to the first model."""

STEPS = {
    "finetune": "stage1/noisy",
    "sample": "samples/round1",
    "score": "scores/round1",
    "prefer": "round1/lambda4",
    "evals.frontier": "evaluation/round1/lambda4",
}
"""Commands that are steps of the recipe."""

# All others ----------------------------------------------------------------------------------------------

ON_TINY = f"--backend {LOCAL_TINY}"
WRITTEN = "--documents documents.jsonl"
OTHERS = {
    "annotate": "annotate.annotator --data documents.jsonl --out {out}/records --ask-from 0 "
    "--base-url {annotator} --model annotator --in-flight 2",
    "answers": f"answers {ON_TINY} --prompts documents.jsonl --max-tokens 150 --temperature 1 --least 1 "
    "--together 2 --out {out}/answers.jsonl",
    "judge": f"judge.__main__ --model {SHIPPED} --preferences preferences.jsonl --within 0.3 --model-folds 2 "
    "--penalty 1 --out {out}/judge",
    "pretrain": "pretrain --steps 6 --hidden 32 --layers 2 --heads 2 --kv-heads 1 --inner 48 --batch 5 "
    "--warmup 2 --copying 15 --save-every 2 --threads 1 --out {out}/model",
    "evals.answers": f"answers {ON_TINY} --prompts prompts.txt --max-tokens 150 --together 2 "
    "--out {out}/answers.jsonl",
    "evals.speed": f"speed {ON_TINY} --n 1 --families chain --passes 2 --out {{out}}/speed.jsonl",
    "evals.methods": f"methods.__main__ {ON_TINY} {WRITTEN} --sample 1 --passes 2 --methods pasta "
    "--methods apar --out {out}/methods.jsonl",
    "evals.load": f"load {ON_TINY} {WRITTEN} --at-once 1 --answers 2 --rounds 2 --methods sequential "
    "--methods auto --out {out}/load.jsonl",
    "evals.likelihood": f"likelihood answers.jsonl --model {SHIPPED} --out {{out}}/likelihood",
    "evals.judge": f"judge answers.jsonl --judge likelihood --judge-model {SHIPPED} --out {{out}}/judge",
    "evals.alpaca": "alpaca answers.jsonl --judge {judge} --judge-model any --bootstrap 5 --out {out}/alpaca",
}
"""By name, in the packages `training` and `evals`; each writes to a folder of its own."""

NAMES = ("run", *STEPS, *OTHERS)
"""Every command that goes on where it was broken off."""

ADJECTIVES = ("calm", "warm", "bright", "wet", "broken", "rusty")


class Work(NamedTuple):
    """A command that writes to a place."""

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
        torch.set_num_threads(1)  # that wait for no other process
        try:
            importlib.import_module(self.module).main(self.arguments)
        except SystemExit as left:
            if isinstance(left.code, str):
                print(left.code)
            return left.code if isinstance(left.code, int) else int(left.code is not None)
        return 0

    def finish(self, log: Path) -> None:
        """Run it to its end in a fork (AssertionError: it ends in another way)."""
        status = os.waitpid(self.child(log), 0)[1]
        told = f"{self.module} {shlex.join(self.arguments)} ended with {status}"
        assert status == 0, f"{told}:\n{log.read_text()[-3000:]}"


@contextmanager
def commands(names: Collection[str], log: Path) -> Generator[dict[str, Work]]:
    """Commands of these names, in the current folder, with what they read; servers run meanwhile."""
    # Those have processes of their own: one that forks must have no threads.
    with _in_a_process(_annotator) as annotator, _in_a_process(_judge) as judge:
        places = {"annotator": annotator, "judge": judge}
        made = {name: _other(name, places) for name in OTHERS if name in names}
        _write_inputs()
        if any("answers.jsonl" in work.arguments for work in made.values()):
            _other("evals.answers", {"out": "."}).finish(log)
        if {"run", *STEPS} & {*names}:
            made |= _of_recipe(log)
        yield {name: made[name] for name in names}


def _other(name: str, places: dict[str, str]) -> Work:
    out = Path("killed", name.replace(".", "-"))
    module, *arguments = shlex.split(OTHERS[name].format(**{"out": out, **places}))
    package = "evals" if name.startswith("evals.") else "training"
    return Work(f"pasta_async.{package}.{module}", arguments, out)


def _of_recipe(log: Path) -> dict[str, Work]:
    """The recipe, and the commands that are steps of it, which read what the steps before them wrote."""
    Work(RUN, [*RECIPE, *ALL, "--out", "OUT"], Path("OUT")).finish(log)
    plan = log.with_name("plan")
    Work(RUN, [*RECIPE, *ALL, "--out", "OUT", "--dry-run"], Path("OUT")).finish(plan)
    lines = plan.read_text().splitlines()
    steps = {
        head.removeprefix("# "): shlex.split(line) for head, line in zip(lines[::2], lines[1::2], strict=True)
    }
    short = [*RECIPE, "--only", STEPS["finetune"], "--out", "recipe"]
    return {"run": Work(RUN, short, Path("recipe"))} | {
        name: _step(steps[step][2:]) for name, step in STEPS.items()
    }


def _step(words: list[str]) -> Work:
    module, *arguments = words
    at = arguments.index("--out") + 1
    out = Path(arguments[at].replace("OUT", "again"))
    out.parent.mkdir(parents=True, exist_ok=True)
    arguments[at] = str(out)
    return Work(module, arguments, out)


# What they read ------------------------------------------------------------------------------------------


def _write_inputs() -> None:
    examples = [sample(FAMILIES[number % 3], number) for number in range(6)]
    records = [
        {
            "id": str(number),
            "messages": [{"role": "user", "content": example.prompt}],
            "written": example.document.format(),
        }
        for number, example in enumerate(examples)
    ]
    Path("documents.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    Path("prompts.txt").write_text("".join(f"{example.prompt}\n" for example in examples))
    Path("preferences.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in _preferences()))


def _preferences() -> list[dict[str, object]]:
    drawn = random.Random(0)

    def text(words: tuple[str, ...]) -> str:
        return " ".join(f"It is {word}." for word in drawn.choices(words, k=drawn.randrange(3, 6)))

    return [
        {
            "instruction": f"Describe house number {number // 2}.",
            "output_1": text(ADJECTIVES[:3]),
            "output_2": text(ADJECTIVES[3:]),
            "generator_1": "reference",
            "generator_2": f"model {number % 4}",
            "preference": 1.0,
        }
        for number in range(24)
    ]


# Whom they ask -------------------------------------------------------------------------------------------


@contextmanager
def _annotator() -> Generator[str]:
    with running_annotator() as annotator:
        yield annotator.url


@contextmanager
def _judge() -> Generator[str]:
    """One who finds the longer answer better."""
    with judging(lambda first, second: 0.9 if len(first) > len(second) else 0.2) as (_, url):
        yield url


@contextmanager
def _in_a_process(server: Callable[[], AbstractContextManager[str]]) -> Generator[str]:
    """A server in a process of its own; its URL."""
    told, tells = os.pipe()
    if not (pid := os.fork()):
        with server() as url:
            os.write(tells, url.encode())
            signal.pause()
    try:
        yield os.read(told, 1000).decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tells)
