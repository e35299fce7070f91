"""Make and compare models by a recipe: `python -m pasta_async.training.run RECIPE`.

Everything goes to one folder: data, models (`stage1/NAME/model`, `round2/lambda4/model`), samples, what was
measured, a report. Each step is one command, and they run in order. What is done is skipped; after Ctrl-C, a
crash or `kill -9` the same command goes on. A step whose options or inputs changed is done again.
"""

from __future__ import annotations

import fcntl
import json
import pkgutil
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, Field, ValidationError

from pasta_async.backends.sglang.command import running_server
from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError, TrainingError, UnsupportedModelError
from pasta_async.jobs import write_json
from pasta_async.training.corpus import explain
from pasta_async.training.identity import model_digest
from pasta_async.training.prompts import PromptSettings
from pasta_async.training.recipe import BASELINE, Options, Recipe, Serving, Stage2, find_recipe, read_recipe
from pasta_async.training.trainer.settings import TrainerSettings

SERVED = "served:"
"""Stands before the folder of a model that a server is to be started for."""

_LOCAL = "local:"

_FREE = {
    *("device", "recompute", "save_every", "threads", "stop_at"),
    *("in_flight", "retries", "timeout", "key_variable", "together"),
}
"""Options that change how a command works, and nothing of its result but for rounding."""

_COMMANDS = {
    "pretrain": ("training.pretrain:PretrainSettings", "", "model"),
    "synthetic": ("training.synthetic.records:SyntheticSettings", "records.jsonl", ""),
    "corpus": ("training.corpus:CorpusSettings", "records.jsonl", ""),
    "prompts": ("training.prompts:PromptSettings", "records.jsonl", ""),
    "answers": ("training.answers:AnswerSettings", "records.jsonl", ""),
    "annotate": ("training.annotate.settings:AnnotateSettings", "", "annotated.jsonl"),
    "finetune": ("training.finetune:FinetuneSettings", "", "model"),
    "sample": ("training.sample:SampleSettings", "samples.jsonl", ""),
    "score": ("training.score:ScoreSettings", "scores.jsonl", ""),
    "prefer": ("training.prefer:PreferSettings", "", "model"),
    "frontier": ("evals.frontier:FrontierSettings", "", "result.json"),
    "ship": ("training.ship:ShipSettings", "", "adapter_model.safetensors"),
}
"""Of each command the class of its settings, its `out` in the folder of its step, and its result in `out`."""


class RunSettings(CommandSettings):
    """What to run."""

    recipe: str = Field(description="a TOML file, or a packaged one: pasta-smol, pasta-tiny, llama-8b, smoke")
    out: Path | None = Field(default=None, description="folder of the run (default: runs/RECIPE)")
    only: tuple[str, ...] = Field(default=(), description="run just what this step needs: round2/lambda4")
    set: tuple[str, ...] = Field(default=(), description="a value over the recipe's: stage2.rounds=1")
    dry_run: bool = Field(default=False, description="show every command, run none")


@dataclass(frozen=True, slots=True)
class Step:
    """One command. Given again, it goes on from what its folder has."""

    name: str
    """Also its folder below the run's, which no other step writes into."""
    module: str
    """Run with `python -m`."""
    options: Mapping[str, Any]
    result: Path
    """What of it others need: there when it is done."""
    needs: tuple[Step, ...] = ()
    processes: int = 1
    """Above 1 it is run behind torchrun."""

    def command(self, addresses: Mapping[str, str] | None = None) -> list[str]:
        """Its command line, with addresses for models that are served."""
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        arguments = [(addresses or {}).get(argument, argument) for argument in as_arguments(self.options)]
        return [sys.executable, *(torchrun if self.processes > 1 else []), "-m", self.module, *arguments]

    @property
    def adapter(self) -> Path | None:
        """The adapter beside a trained model, if it was trained as one, new or further."""
        folder = self.result.with_name("adapter")
        further = Path(self.options["model"]).name == folder.name
        return folder if further or self.options.get("lora_rank") else None


class Plan:
    """The steps of a recipe: `steps` by name, each behind those that it needs.

    Raises:
        InvalidRequestError: An option does not fit its command, or is one that the plan sets itself.
    """

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe: Recipe = recipe
        self.out: Path = out
        self.steps: dict[str, Step] = {}
        self.models: list[Step] = []
        """Those that make a model which is measured; the baseline is the first."""
        variants, stage2, base = recipe.stage1.variants, recipe.stage2, recipe.base
        self.start: str = stage2.start if stage2 else next(iter(variants))
        """The variant whose data the baseline is trained on."""
        if not isinstance(base, str):
            base = self._add("base", "pretrain", base).result
        self._base = Path(base)
        for name in (BASELINE, *variants):
            self._finetune(name)
        self._evaluate()
        if stage2:
            for number in range(1, stage2.rounds + 1):
                self._round(stage2, number)
        self._ship()

    def _add(self, name: str, command: str, options: Options, **own: Any) -> Step:
        """A step, or the same one, if there is one already. It needs those whose folders it names.

        `options` are the recipe's, `own` the plan's.
        """
        settings, out, result = _COMMANDS[command]
        own["out"] = self.out / name / out
        if twice := [option for option in own if option in options]:
            raise InvalidRequestError(f"{name}: {', '.join(twice)} is set by the plan, not by the recipe")
        given = {key: _as_text(value) for key, value in {**own, **options}.items()}
        if known := self.steps.get(name):
            if known.options != given:
                raise InvalidRequestError(f"{name} would be two steps with other options: rename a variant")
            return known
        try:
            cast("type[BaseModel]", pkgutil.resolve_name(f"pasta_async.{settings}")).model_validate(given)
        except ValidationError as error:
            raise InvalidRequestError(f"{name} ({command}): {explain(error)}") from None
        named = [f"{word}/" for word in as_arguments(given)]
        needs = [one for one in self.steps.values() if any(f"{self.out / one.name}/" in w for w in named)]
        module = f"pasta_async.{settings.partition('.')[0]}.{command}"
        processes = self.recipe.processes if result == "model" else 1
        step = Step(name, module, given, own["out"] / result, tuple(needs), processes)
        return self.steps.setdefault(name, step)

    def _finetune(self, name: str) -> None:
        stage1 = self.recipe.stage1
        variant = self.start if name == BASELINE else name
        options = {**stage1.train, **stage1.variants[variant].train}
        if name == BASELINE:  # plain answers, and as many updates as the others have
            if options.get("form") == "both":  # two examples of each answer in an epoch, the baseline has one
                epochs = TrainerSettings.model_fields["epochs"].default
                options["epochs"] = 2 * options.get("epochs", epochs)
            options["form"] = "plain"
        own: dict[str, Any] = {"model": self._base, "data": [self._annotated(variant)]}
        self.models.append(self._add(f"stage1/{name}", "finetune", options, **own))

    def _annotated(self, name: str) -> Path:
        variant = self.recipe.stage1.variants[name]
        annotator = variant.annotator
        if annotator in ("noisy", "maker"):
            return self._synthetic(f"data/{annotator}", annotator)
        if annotator == "given":
            return self._plain()
        options: Options = {"heuristic": True, "cut": annotator}
        if annotator == "endpoint":
            options = self.recipe.data.annotator or {}
        elif annotator == "likelihood":
            options = {"by_likelihood": True, "model": self._base}
        step = f"data/{name if variant.annotate else annotator}"
        own: dict[str, Any] = {"data": self._plain(), "tokenizer": self._base}
        return self._add(step, "annotate", {**options, **variant.annotate}, **own).result

    def _plain(self) -> Path:
        """The answers as they come."""
        data = self.recipe.data
        if data.source is not None:
            return self._add("data/plain", "corpus", data.source).result
        if data.prompts is None:
            return self._synthetic("data/plain", "nobody")
        prompts = self._add("data/prompts", "prompts", data.prompts).result
        own: dict[str, Any] = {"prompts": [prompts], "backend": self._backend(self._base)}
        return self._add("data/plain", "answers", data.answers, **own).result

    def _synthetic(self, name: str, annotator: str, **drawn: Any) -> Path:
        """Examples of the synthetic task; `drawn` replaces what the recipe says of them."""
        options = {**(self.recipe.data.synthetic or {}), **drawn}
        return self._add(name, "synthetic", options, annotator=annotator).result

    def _round(self, stage: Stage2, number: int) -> None:
        for weight in [f"{weight:g}" for weight in stage.quality_weights]:
            name = f"round{number}/lambda{weight}"
            before = f"stage1/{stage.start}" if number == 1 else f"round{number - 1}/lambda{weight}"
            # The first round's samples are of the same model for all weights: they are drawn once.
            where = "round1" if number == 1 else name
            own: dict[str, Any] = {"samples": self._samples(stage, number, before, where)}
            scores = self._add(f"scores/{where}", "score", self._judged(stage.score), **own)
            start = self.steps[before].adapter or self.steps[before].result
            own |= {"scores": scores.result, "model": start, "quality_weight": weight}
            self.models.append(self._add(name, "prefer", stage.train, **own))
        self._evaluate()

    def _samples(self, stage: Stage2, number: int, model: str, where: str) -> Path:
        """Samples of a model. Every round has prompts of its own, and none that stage 1 has seen."""
        own: dict[str, Any] = {
            "backend": self._backend(self.steps[model].result),
            "baseline": self._backend(self.models[0].result),
            "prompts": [self._behind(stage, number)],
            "skip": (number - 1) * stage.prompts,
            "limit": stage.prompts,
            "unseen": [self._annotated(stage.start)],
            "own_plain": stage.train.get("keep_plain", False),
        }
        return self._add(f"samples/{where}", "sample", stage.sample, **own).result

    def _behind(self, stage: Stage2, number: int) -> Path:
        """Prompts behind stage 1's, or of another seed of the synthetic task.

        They are for the rounds up to this one, so that each begins with those of the round before: a round
        has the same prompts however many there are.
        """
        name, needed, data = f"prompts/round{number}", number * stage.prompts, self.recipe.data
        if data.synthetic is not None:
            seed = data.synthetic.get("seed", 0) + 1
            return self._synthetic(name, "nobody", count=needed, seed=seed)
        if data.prompts is not None:
            command, options, part = "prompts", data.prompts, {"count": needed}
            stage1 = options.get("count", PromptSettings.model_fields["count"].default)
        else:  # rows of a data set twice, for some are repeated or leak
            command, options, part = "corpus", data.source or {}, {"limit": 2 * needed}
            stage1 = options["limit"]
        part["skip"] = options.get("skip", 0) + stage1
        return self._add(name, command, {**options, **part}).result

    def _evaluate(self) -> None:
        """Measure the models that there are; first the baseline, with which the others are compared."""
        options = self._judged(self.recipe.evaluation)
        own: dict[str, Any] = {"sequential": True}
        for model in self.models:
            own["backend"] = self._backend(model.result)
            self._add(f"evaluation/{model.name}", "frontier", options, **own)
            own = {"baseline": self.out / "evaluation" / self.models[0].name}

    def _judged(self, options: Options) -> Options:
        """Options of a judge; where it is likelihood, the base's unless they name another model's."""
        return {"judge_model": self._base, **options} if options.get("judge") == "likelihood" else options

    def _ship(self) -> None:
        """Make what ships of every model that is an adapter of the base, as its stage 1 then is too."""
        own: dict[str, Any] = {"base": self._base, "base_name": self._base}
        for model in self.models[1:]:
            first = model if model.name.startswith("stage1/") else self.steps[f"stage1/{self.start}"]
            if model.adapter and first.adapter:
                self._add(f"shipped/{model.name}", "ship", self.recipe.ship, adapter=model.adapter, **own)

    def _backend(self, model: Path) -> str:
        return f"{SERVED if self.recipe.serving else _LOCAL}{model}"

    def needed(self, names: Sequence[str]) -> list[Step]:
        """The named steps and all that they need, in order; all steps, if none is named.

        Raises:
            InvalidRequestError: There is no step of a name; the message lists them.
        """
        for name in names:
            if name not in self.steps:
                raise InvalidRequestError(f"there is no step {name!r}; there are: {', '.join(self.steps)}")
        wanted = set(names or self.steps)
        for step in reversed(self.steps.values()):
            if step.name in wanted:
                wanted.update(need.name for need in step.needs)
        return [step for step in self.steps.values() if step.name in wanted]

    def described(self) -> dict[str, Any]:
        """What a report has to know of the run, as JSON."""
        return {
            "title": self.recipe.title or self.out.name,
            "start": f"stage1/{self.start}",
            "models": [{"name": one.name} for one in self.models[1:]],
            "steps": {step.name: [need.name for need in step.needs] for step in self.steps.values()},
        }


def _as_text(value: Any) -> Any:
    """Tables as JSON, and paths as text: as a command line gives them."""
    if isinstance(value, list):
        return [_as_text(one) for one in cast("list[Any]", value)]
    return json.dumps(value) if isinstance(value, dict) else str(value) if isinstance(value, Path) else value


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line has them: `{"lr": 0.1, "recompute": False}` as `--lr 0.1 --no-recompute`."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            several = cast("list[Any]", value) if isinstance(value, list) else [value]
            arguments += [part for one in several for part in (f"--{flag}", str(one))]
    return arguments


def run(settings: RunSettings) -> None:
    """Plan, run what is due, report.

    Raises:
        PastaError: The recipe does not fit, before anything is run; or a step failed.
    """
    path = find_recipe(settings.recipe)
    recipe = read_recipe(path, settings.set)
    out = settings.out or Path("runs") / path.stem
    plan = Plan(recipe, out)
    steps = plan.needed(settings.only)
    if settings.dry_run:
        for step in steps:
            print(f"# {step.name}\n{shlex.join(step.command())}")
        return
    write_json(out / "run.json", plan.described())
    run_steps(steps, out, recipe.serving)
    subprocess.run([sys.executable, "-m", "pasta_async.evals.report", str(out)], check=True)


def run_steps(steps: Sequence[Step], out: Path, serving: Serving | None = None) -> None:
    """Run the steps that are not done, one after another.

    OUT/steps/NAME.json says how far a step is. If another run in this folder is at a step, it is waited for.

    Raises:
        TrainingError: A step failed, or left no result.
        BackendConnectError: A server of `serving` did not start.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the step at work was told to leave, and has.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    finished: dict[str, float] = {}
    try:
        for number, step in enumerate(steps, start=1):
            record = out / "steps" / f"{step.name}.json"
            record.parent.mkdir(parents=True, exist_ok=True)
            with record.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                made_of = _made_of(step, out, finished)
                state: dict[str, Any] = {"of": made_of, "finished": None, "seconds": 0.0}
                known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else state
                if known["of"] != made_of:
                    shutil.rmtree(out / step.name, ignore_errors=True)
                elif (state := known)["finished"] and step.result.exists():
                    finished[step.name] = state["finished"]
                    continue
                print(f"[{number}/{len(steps)}] {step.name}", flush=True)
                finished[step.name] = _run_step(step, out, record, state, lock.fileno(), serving)
    finally:
        signal.signal(signal.SIGTERM, before)


def _made_of(step: Step, out: Path, finished: Mapping[str, float]) -> dict[str, Any]:
    """What a step's result depends on: options, the files that they name, when the steps before finished."""
    arguments = as_arguments({key: value for key, value in step.options.items() if key not in _FREE})
    named = (argument.removeprefix(SERVED).removeprefix(_LOCAL) for argument in arguments)
    files = [Path(name) for name in named if 0 < len(name) < 255]  # a longer option names no file
    states = {str(one): _state(one) for one in files if one.exists() and not one.is_relative_to(out)}
    options = [argument.replace(f"{out}/", "OUT/") for argument in arguments]
    before = {one.name: finished[one.name] for one in step.needs}
    return {"options": options, "files": states, "steps": before}


def _state(path: Path) -> float | str:
    """What is another once a file was written, or one in a folder; of a model's folder what it computes."""
    if not path.is_dir():
        return path.stat().st_mtime
    try:
        return model_digest(path)
    except UnsupportedModelError:  # a data set's, for instance
        return max((one.stat().st_mtime for one in path.rglob("*") if one.is_file()), default=0.0)


def _run_step(
    step: Step, out: Path, record: Path, state: dict[str, Any], lock: int, serving: Serving | None
) -> float:
    """Run its command, servers beside it; returns when it has finished."""
    (out / step.name).mkdir(parents=True, exist_ok=True)
    _write(record, state)
    start = time.monotonic()
    try:
        with ExitStack() as stack:
            models = dict.fromkeys(word for word in as_arguments(step.options) if word.startswith(SERVED))
            addresses: dict[str, str] = {}
            if serving:
                servers = (_server(model, number, serving) for number, model in enumerate(models))
                addresses = dict(zip(models, map(stack.enter_context, servers), strict=True))
            # The process has the lock as well: if this one is killed, nobody starts the step beside it.
            process = stack.enter_context(
                subprocess.Popen(step.command(addresses), stdin=subprocess.DEVNULL, pass_fds=[lock])
            )
            stack.callback(process.terminate)
            status = process.wait()
        if status or not step.result.exists():
            raise TrainingError(f"{step.name} ended with status {status}" + " and no result" * (not status))
        state["finished"] = time.time()
        return state["finished"]
    finally:
        state["seconds"] = round(state["seconds"] + time.monotonic() - start, 1)
        _write(record, state)


def _write(record: Path, state: Mapping[str, Any]) -> None:
    draft = record.with_suffix(".part")
    write_json(draft, state)
    draft.replace(record)


@contextmanager
def _server(model: str, number: int, serving: Serving) -> Generator[str]:
    """The address of a server of a model; the number says which port and GPUs it has."""
    port = serving.port + number
    places = {"model": model.removeprefix(SERVED), "port": port, "gpu": number * serving.gpus}
    command = [part.format(**places) for part in shlex.split(serving.command)]
    url = f"http://127.0.0.1:{port}"
    with running_server(command, f"{url}/health", timeout=serving.start_timeout):
        yield url


main: Command = command(
    RunSettings, run, "pasta_async.training.run", __doc__, positional=("recipe",), resumes=True
)

if __name__ == "__main__":
    main()
