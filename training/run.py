"""Make and compare models by a recipe: `python -m pasta_async.training.run RECIPE`.

Everything goes to one folder: data, models (`stage1/NAME/model`, `round2/lambda4/model`), samples, what was
measured, a report. Each step is one command. What is done is skipped; after Ctrl-C, a crash or `kill -9` the
same command goes on. A step whose options or inputs changed is done again, with all that depends on it.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
from pydantic import BaseModel, Field, ValidationError

from pasta_async.cli.command import command as make_main
from pasta_async.errors import BackendConnectError, InvalidRequestError, TrainingError
from pasta_async.training.corpus.records import StrictModel, explain
from pasta_async.training.recipe import BASELINE, find_recipe, read_recipe

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from pasta_async.cli.command import Command
    from pasta_async.training.recipe import Flags, Recipe, Serving, Stage2, Variant

__all__ = ["SERVED", "Plan", "RunSettings", "Step", "as_arguments", "command", "main", "run", "run_steps"]

SERVED = "served:"
"""Stands before the folder of a model that a server is to be started for."""

_SETTINGS: dict[str, str] = {
    "pasta_async.training.pretrain": "pasta_async.training.pretrain:PretrainSettings",
    "pasta_async.training.synthetic": "pasta_async.training.synthetic.__main__:SyntheticSettings",
    "pasta_async.training.corpus": "pasta_async.training.corpus.__main__:CorpusSettings",
    "pasta_async.training.annotate": "pasta_async.training.annotate.annotator:AnnotateSettings",
    "pasta_async.training.finetune": "pasta_async.training.finetune:FinetuneSettings",
    "pasta_async.training.sample": "pasta_async.training.sample:SampleSettings",
    "pasta_async.training.score": "pasta_async.training.score:ScoreSettings",
    "pasta_async.training.prefer": "pasta_async.training.prefer:PreferSettings",
    "pasta_async.evals.frontier": "pasta_async.evals.frontier:FrontierSettings",
}
"""The settings class of each command, by the module that is run; loaded by name, as the command is."""

_FREE = {
    *("device", "attention", "recompute", "save_every", "track", "threads", "stop_at", "in_flight"),
    *("retries", "timeout", "key_variable", "together"),
}
"""Options that change how a command works, and nothing of its result but for rounding."""

_LONGEST_PATH = 255
"""Characters; a longer option names no file."""

_SERVER_STOP = 30.0
"""Seconds that a server has to end in."""


class RunSettings(StrictModel):
    """What to run. Every field is an option of the command line."""

    recipe: str = Field(description="a TOML file, or the name of a packaged one: pasta-tiny, llama-8b, smoke")
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


class Plan:
    """The steps of a recipe: `steps` by name, each behind those that it needs.

    Raises:
        InvalidRequestError: The recipe sets an option that the plan sets itself.
    """

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe: Recipe = recipe
        self.out: Path = out
        self.steps: dict[str, Step] = {}
        self.models: list[Step] = []
        """Those that make a model which is measured; the baseline is the first."""
        stage1, stage2 = recipe.stage1, recipe.stage2
        self._base()
        self.compared: str = stage2.start if stage2 else next(iter(stage1.variants))
        """The variant whose data the baseline is trained on."""
        first = stage1.variants[self.compared]
        options = _baseline_options({**stage1.train, **first.train}, stage1.baseline)
        self._finetune(BASELINE, self._annotated(self.compared, first), options)
        for name, variant in stage1.variants.items():
            self._finetune(name, self._annotated(name, variant), {**stage1.train, **variant.train})
        self._evaluate()
        if stage2 is not None:
            self._second_stage(stage2)

    def _add(
        self,
        name: str,
        module: str,
        options: Mapping[str, Any],
        own: Mapping[str, Any],
        result: str = "",
        needs: Iterable[Step | None] = (),
        processes: int = 1,
    ) -> Step:
        """A step with the recipe's options and the plan's own (`out` is the result, where it is not said).

        The one of that name, if there is one already.
        """
        if name in self.steps:
            return self.steps[name]
        place = self.out / name / result
        own = {"out": place, **own}
        if twice := [option for option in own if option in options]:
            raise InvalidRequestError(
                f"{name}: {', '.join(twice)} is set by the plan, and has to go from the recipe"
            )
        needed = tuple(need for need in needs if need)
        step = Step(name, f"pasta_async.{module}", {**own, **options}, place, needed, processes)
        self.steps[name] = step
        return step

    def _base(self) -> tuple[Step | None, Path]:
        """The step that makes the base model, if there is one, and the model's folder."""
        base = self.recipe.base
        if base.pretrain is None:
            return None, Path(base.model)
        own = {"out": self.out / "base"}
        step = self._add("base", "training.pretrain", base.pretrain, own, "model", (), self.recipe.processes)
        return step, step.result

    def _annotated(self, name: str, variant: Variant) -> Step:
        annotator = variant.annotator
        if annotator in ("noisy", "maker"):
            return self._synthetic(f"data/{annotator}", annotator)
        plain = self._plain()
        if annotator == "given":
            return plain
        base, model = self._base()
        options: Flags = {"heuristic": True, "cut": annotator}
        if annotator == "endpoint":
            options = self.recipe.data.annotator or {}
        step = f"data/{name if variant.annotate else annotator}"
        own = {"data": plain.result, "tokenizer": model, "out": self.out / step}
        options = {**options, **variant.annotate}
        return self._add(step, "training.annotate", options, own, "annotated.jsonl", [plain, base])

    def _plain(self) -> Step:
        """The answers as they come."""
        source = self.recipe.data.source
        if source is None:
            return self._synthetic("data/plain", "nobody")
        return self._add("data/plain", "training.corpus", source, {}, "records.jsonl")

    def _synthetic(self, name: str, annotator: str, **drawn: Any) -> Step:
        """Examples of the synthetic task; `drawn` replaces what the recipe says of them."""
        options = {**(self.recipe.data.synthetic or {}), **drawn}
        return self._add(name, "training.synthetic", options, {"annotator": annotator}, "records.jsonl")

    def _train(
        self, name: str, module: str, options: Flags, own: Mapping[str, Any], needs: Iterable[Step | None]
    ) -> Step:
        own = {**own, "out": self.out / name}
        step = self._add(name, module, options, own, "model", needs, self.recipe.processes)
        self.models.append(step)
        return step

    def _finetune(self, name: str, data: Step, options: Flags) -> None:
        base, model = self._base()
        own = {"model": model, "data": data.result}
        self._train(f"stage1/{name}", "training.finetune", options, own, [base, data])

    def _second_stage(self, stage: Stage2) -> None:
        latest = dict.fromkeys(stage.quality_weights, self.steps[f"stage1/{stage.start}"])
        for number in range(1, stage.rounds + 1):
            for weight, model in latest.items():
                name = f"round{number}/lambda{weight:g}"
                # The first round's samples are of the same model for all weights: they are drawn once.
                drawn, scored = self._samples(stage, model, number, name if number > 1 else "round1")
                own: dict[str, Any] = {"model": model.result, "samples": drawn.result}
                own |= {"scores": scored.result, "quality_weight": f"{weight:g}"}
                needs = [model, drawn, scored]
                latest[weight] = self._train(name, "training.prefer", stage.train, own, needs)
            self._evaluate()

    def _samples(self, stage: Stage2, model: Step, number: int, where: str) -> tuple[Step, Step]:
        """Samples and their scores. Every round has prompts of its own: new ones, or another part."""
        baseline = self.models[0]
        own: dict[str, Any] = {"backend": self._backend(model), "baseline": self._backend(baseline)}
        if self.recipe.data.synthetic is not None:
            seed = int(str(self.recipe.data.synthetic.get("seed", 0))) + number
            prompts = self._synthetic(f"prompts/round{number}", "nobody", count=stage.prompts, seed=seed)
        else:
            prompts = self._plain()
            own |= {"skip": (number - 1) * stage.prompts, "limit": stage.prompts}
        own["prompts"] = prompts.result
        name, needs = f"samples/{where}", [model, baseline, prompts]
        drawn = self._add(name, "training.sample", stage.sample, own, "samples.jsonl", needs)
        own = {"samples": drawn.result}
        return drawn, self._add(
            f"scores/{where}", "training.score", stage.score, own, "scores.jsonl", [drawn]
        )

    def _evaluate(self) -> None:
        """Measure the models that there are; first the baseline, with which the others are compared."""
        baseline: Step | None = None
        options = self.recipe.evaluation.flags
        for model in self.models:
            name = f"evaluation/{model.name}"
            own: dict[str, Any] = {"backend": self._backend(model), "out": self.out / name}
            own |= {"baseline": baseline.result.parent} if baseline else {"sequential": True}
            step = self._add(name, "evals.frontier", options, own, "result.json", [model, baseline])
            baseline = baseline or step

    def _backend(self, model: Step) -> str:
        return f"{SERVED if self.recipe.serving else self.recipe.backend}{model.result}"

    def needed(self, names: Sequence[str]) -> list[Step]:
        """The named steps and all that they need, in order; all steps, if none is named.

        Raises:
            InvalidRequestError: There is no step of a name; the message lists them.
        """
        for name in names:
            if name not in self.steps:
                raise InvalidRequestError(f"there is no step {name!r}; there are: {', '.join(self.steps)}")
        wanted = set(names or self.steps)
        for step in reversed([*self.steps.values()]):
            if step.name in wanted:
                wanted.update(need.name for need in step.needs)
        return [step for step in self.steps.values() if step.name in wanted]

    def described(self) -> dict[str, Any]:
        """What a report has to know of the run, as JSON: its models, and the steps with what they need."""
        annotators = {f"stage1/{name}": one.annotator for name, one in self.recipe.stage1.variants.items()}
        return {
            "title": self.recipe.title or self.out.name,
            "baseline": self.models[0].name,
            "start": f"stage1/{self.compared}",
            "models": [{"name": one.name, "annotator": annotators.get(one.name)} for one in self.models[1:]],
            "steps": {step.name: [need.name for need in step.needs] for step in self.steps.values()},
        }


def _baseline_options(train: Flags, baseline: Flags) -> Flags:
    """The baseline's options: plain answers, and as many updates as the others have.

    A model of both forms has two examples of each answer in an epoch, the baseline has one.
    """
    from pasta_async.training.trainer.settings import TrainerSettings

    epochs = train.get("epochs", TrainerSettings.model_fields["epochs"].default)
    longer: Flags = {}
    if train.get("form") == "both" and isinstance(epochs, int | float):
        longer = {"epochs": 2 * epochs}
    return {**train, **longer, "form": "plain", **baseline}


def check_options(steps: Iterable[Step]) -> None:
    """Check every step's options as its command will.

    Raises:
        InvalidRequestError: One does not fit; with the step, the option and the reason.
    """
    for step in steps:
        settings: type[BaseModel] = pkgutil.resolve_name(_SETTINGS[step.module])
        try:
            settings.model_validate(
                {key: _as_read(settings, key, value) for key, value in step.options.items()}
            )
        except ValidationError as error:
            raise InvalidRequestError(f"{step.name} ({step.module}): {explain(error)}") from None


def _as_read(settings: type[BaseModel], key: str, value: Any) -> Any:
    """A value as a command line gives it: one of several makes a list, tables are JSON, paths are text."""
    option = settings.model_fields.get(key)
    several = option is not None and getattr(option.annotation, "__origin__", None) is tuple
    if isinstance(value, dict):
        return json.dumps(value)
    value = str(value) if isinstance(value, Path) else value
    return [value] if several and not isinstance(value, list) else cast("Any", value)


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line has them: `{"lr": 0.1, "recompute": False}` as `--lr 0.1 --no-recompute`."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        for one in cast("list[Any]", value) if isinstance(value, list) else [value]:
            words += [f"--{flag}", json.dumps(one) if isinstance(one, dict) else str(one)]
    return words


def command(step: Step, addresses: Mapping[str, str] | None = None) -> list[str]:
    """The command line of a step, with addresses for models that are served."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(step.processes)]
    arguments = [(addresses or {}).get(word, word) for word in as_arguments(step.options)]
    return [sys.executable, *(torchrun if step.processes > 1 else []), "-m", step.module, *arguments]


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

    Raises:
        TrainingError: A step failed, or left no result.
        BackendConnectError: A server of `serving` did not start.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the step at work was told to leave, and has.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for number, step in enumerate(steps, start=1):
            record = _record(step, out)
            record.parent.mkdir(parents=True, exist_ok=True)
            with record.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                state = _state(step, out)
                if not state["finished"]:
                    print(f"[{number}/{len(steps)}] {step.name}", flush=True)
                    _run_step(step, out, state, lock.fileno(), serving)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_step(step: Step, out: Path, state: dict[str, Any], lock: int, serving: Serving | None) -> None:
    (out / step.name).mkdir(parents=True, exist_ok=True)
    _write(_record(step, out), state)
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
        state["finished"] = time.time()
    finally:
        state["seconds"] = round(state["seconds"] + time.monotonic() - start, 1)
        _write(_record(step, out), state)


def _state(step: Step, out: Path) -> dict[str, Any]:
    """How far a step is; what was begun with other options, or before an input changed, is removed."""
    lasting = {key: value for key, value in step.options.items() if key not in _FREE}
    options = [word.replace(f"{out}/", "OUT/") for word in as_arguments(lasting)]
    new = {"options": options, "started": time.time(), "finished": None, "seconds": 0.0}
    if not _record(step, out).exists():
        return new
    state = _read(step, out)
    if state["options"] == options and _changed(step, out) <= state["started"]:
        return state
    shutil.rmtree(out / step.name, ignore_errors=True)
    return new


def _changed(step: Step, out: Path) -> float:
    """When an input changed last: a step that is needed, or a file that an option names."""
    files = [Path(word) for word in as_arguments(step.options) if len(word) < _LONGEST_PATH]
    times = [one.stat().st_mtime for one in files if one.exists() and not one.is_relative_to(out)]
    return max([0.0, *times, *(_read(need, out)["finished"] for need in step.needs)])


def _record(step: Step, out: Path) -> Path:
    return out / "steps" / f"{step.name}.json"


def _read(step: Step, out: Path) -> dict[str, Any]:
    return json.loads(_record(step, out).read_text(encoding="utf-8"))


def _write(record: Path, state: Mapping[str, Any]) -> None:
    draft = record.with_suffix(".part")
    draft.write_text(json.dumps(state) + "\n", encoding="utf-8")
    draft.replace(record)


def serve(step: Step, serving: Serving, stack: ExitStack) -> dict[str, str]:
    """Start a server for each model of a step that is to be served; their addresses, when all are healthy."""
    models = dict.fromkeys(word for word in as_arguments(step.options) if word.startswith(SERVED))
    return {word: stack.enter_context(_server(word, number, serving)) for number, word in enumerate(models)}


@contextmanager
def _server(word: str, number: int, serving: Serving) -> Generator[str]:
    url = f"http://127.0.0.1:{serving.port + number}"
    places = {"model": word.removeprefix(SERVED), "port": serving.port + number, "gpu": number * serving.gpus}
    words = [part.format(**places) for part in shlex.split(serving.command)]
    deadline = time.monotonic() + serving.start_timeout
    if _healthy(url):
        raise BackendConnectError(f"{url} is taken already: end that server, or set serving.port")
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                end = f"is not ready after {serving.start_timeout:g} s"
                if process.returncode is not None:
                    end = f"ended with status {process.returncode}"
                raise BackendConnectError(f"{shlex.join(words)} {end}")
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


main: Command = make_main(
    RunSettings, run, "pasta_async.training.run", __doc__, positional=("recipe",), resumes=True
)

if __name__ == "__main__":
    main()
