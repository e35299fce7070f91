"""The steps that a recipe comes to: one command each, with what it needs and where its result goes."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.records import explain
from pasta_async.training.recipe import BASELINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pasta_async.training.recipe import Flags, Recipe, Stage2, Variant

__all__ = ["SERVED", "Plan", "Step", "as_arguments", "check_options", "needed"]

SERVED = "served:"
"""Stands before the folder of a model that a server is to be started for."""

_TRAINING = "pasta_async.training"
_SETTINGS: dict[str, str] = {
    f"{_TRAINING}.pretrain": "Config",
    f"{_TRAINING}.synthetic": "__main__:SyntheticSettings",
    f"{_TRAINING}.corpus": "__main__:CorpusSettings",
    f"{_TRAINING}.annotate": "__main__:AnnotateSettings",
    f"{_TRAINING}.finetune": "FinetuneSettings",
    f"{_TRAINING}.sample": "SampleSettings",
    f"{_TRAINING}.score": "ScoreSettings",
    f"{_TRAINING}.prefer": "PreferSettings",
    "pasta_async.evals.frontier": "measuring:FrontierSettings",
}
"""The settings class of each command, by the module that is run; loaded by name, as the command is."""


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
    reads: tuple[Path, ...] = ()
    """Files and folders that it reads and no step made."""
    processes: int = 1
    """Above 1 it is run behind torchrun."""


class Plan:
    """The steps of a recipe.

    Args:
        recipe: What is planned.
        out: The folder of the run.

    Raises:
        InvalidRequestError: The recipe sets an option that the plan sets itself.
    """

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe: Recipe = recipe
        self.out: Path = out
        self.steps: dict[str, Step] = {}
        """By name, each behind those that it needs."""
        self.models: list[Step] = []
        """Those that make a model which is measured; the baseline is the first."""
        self._first_stage()
        self._evaluate()
        if recipe.stage2 is not None:
            self._second_stage(recipe.stage2)

    @property
    def compared(self) -> str:
        """The variant whose data the baseline is trained on."""
        stage2 = self.recipe.stage2
        return stage2.start if stage2 is not None else next(iter(self.recipe.stage1.variants))

    def _step(
        self,
        name: str,
        command: str,
        result: str,
        table: tuple[str, Mapping[str, Any]],
        own: Mapping[str, Any],
        needs: Iterable[Step | None] = (),
        reads: Iterable[object] = (),
        trains: bool = False,
    ) -> Step:
        """A step; the one of that name, if there is one already.

        `table` is the recipe's table of options with its place, `own` are those that the plan sets (`out` is
        the result, where it is not said), `reads` are files that no step made, if they exist.
        """
        if name in self.steps:
            return self.steps[name]
        place, options = table
        own = {"out": self.out / name / result, **own}
        if twice := [option for option in own if option in options]:
            raise InvalidRequestError(
                f"{place}: {', '.join(twice)} is set by the plan, and has to go from the recipe"
            )
        step = Step(
            name,
            f"pasta_async.{command}",
            {**own, **options},
            self.out / name / result,
            tuple(need for need in needs if need),
            tuple(path for path in (Path(str(one)) for one in reads if one) if path.exists()),
            self.recipe.processes if trains else 1,
        )
        self.steps[name] = step
        if trains:
            self.models.append(step)
        return step

    # Base model and data

    def _base(self) -> tuple[Step | None, Path]:
        """The step that makes the base model, if there is one, and the model's folder."""
        base = self.recipe.base
        if base.pretrain is None:
            return None, Path(base.model)
        step = self._step("base", "training.pretrain", "", ("base.pretrain", base.pretrain), {})
        return step, step.result

    def _annotated(self, name: str, variant: Variant) -> Step:
        """A variant's data."""
        annotator = variant.annotator
        base, model = self._base()
        if annotator in ("noisy", "maker"):
            return self._synthetic(f"data/{annotator}", annotator)
        plain = self._plain()
        if annotator == "given":
            return plain
        options: Flags = {"heuristic": True, "cut": annotator}
        if annotator == "endpoint":
            options = self.recipe.data.annotator
        step = f"data/{name if variant.annotate else annotator}"
        table = (f"stage1.variants.{name}.annotate", {**options, **variant.annotate})
        own = {"data": plain.result, "tokenizer": model, "out": self.out / step}
        return self._step(step, "training.annotate", "annotated.jsonl", table, own, [plain, base])

    def _plain(self) -> Step:
        """The answers as they come."""
        source = self.recipe.data.source
        if source is None:
            return self._synthetic("data/plain", "nobody")
        against = source.get("against", [])
        files = [
            source.get("data"),
            source.get("prompts"),
            *(against if isinstance(against, list) else [against]),
        ]
        return self._step(
            "data/plain", "training.corpus", "records.jsonl", ("data.source", source), {}, reads=files
        )

    def _synthetic(self, name: str, annotator: str, **drawn: Any) -> Step:
        """Examples of the synthetic task; `drawn` replaces what the recipe says of them."""
        table = ("data.synthetic", {**(self.recipe.data.synthetic or {}), **drawn})
        return self._step(name, "training.synthetic", "records.jsonl", table, {"annotator": annotator})

    # Stage 1

    def _first_stage(self) -> None:
        stage = self.recipe.stage1
        first = stage.variants[self.compared]
        plain = _baseline_options({**stage.train, **first.train}, stage.baseline)
        self._finetune(BASELINE, self._annotated(self.compared, first), plain)
        for name, variant in stage.variants.items():
            self._finetune(name, self._annotated(name, variant), {**stage.train, **variant.train})

    def _finetune(self, name: str, data: Step, options: Flags) -> None:
        base, model = self._base()
        own = {"model": model, "data": data.result, "out": self.out / f"stage1/{name}"}
        reads, table = [] if base else [model], ("stage1.train", options)
        needs = [base, data]
        self._step(f"stage1/{name}", "training.finetune", "model", table, own, needs, reads, trains=True)

    # Stage 2

    def _second_stage(self, stage: Stage2) -> None:
        latest = dict.fromkeys(stage.quality_weights, self.steps[f"stage1/{stage.start}"])
        for number in range(1, stage.rounds + 1):
            for weight, model in latest.items():
                # The first round's samples are of the same model for all weights: they are drawn once.
                where = f"round{number}" if number == 1 else f"round{number}/lambda{weight:g}"
                drawn, scored = self._samples(stage, model, number, where)
                name = f"round{number}/lambda{weight:g}"
                own = {"model": model.result, "samples": drawn.result, "scores": scored.result}
                own |= {"quality_weight": f"{weight:g}", "out": self.out / name}
                table, needs = ("stage2.train", stage.train), [model, drawn, scored]
                latest[weight] = self._step(name, "training.prefer", "model", table, own, needs, trains=True)
            self._evaluate()

    def _samples(self, stage: Stage2, model: Step, number: int, where: str) -> tuple[Step, Step]:
        """Samples and their scores. Every round has prompts of its own: new ones, or another part."""
        baseline, own = self.models[0], dict[str, Any]()
        if self.recipe.data.synthetic is not None:
            seed = int(str(self.recipe.data.synthetic.get("seed", 0))) + number
            prompts = self._synthetic(f"prompts/round{number}", "nobody", count=stage.prompts, seed=seed)
        else:
            prompts = self._plain()
            own = {"skip": (number - 1) * stage.prompts, "limit": stage.prompts}
        own |= {
            "backend": self._backend(model),
            "baseline": self._backend(baseline),
            "prompts": prompts.result,
        }
        table, needs = ("stage2.sample", stage.sample), [model, baseline, prompts]
        drawn = self._step(f"samples/{where}", "training.sample", "samples.jsonl", table, own, needs)
        table, own = ("stage2.score", stage.score), {"samples": drawn.result}
        return drawn, self._step(f"scores/{where}", "training.score", "scores.jsonl", table, own, [drawn])

    # Evaluation

    def _evaluate(self) -> None:
        """Measure the models that there are; first the baseline, with which the others are compared."""
        baseline: Step | None = None
        options = self.recipe.evaluation.flags
        for model in self.models:
            name = f"evaluation/{model.name}"
            own: dict[str, Any] = {"backend": self._backend(model), "out": self.out / name}
            if baseline is not None:
                own["baseline"] = baseline.result.parent
            table, needs = ("evaluation.flags", options), [model, baseline]
            step = self._step(
                name, "evals.frontier", "result.json", table, own, needs, [options.get("prompts")]
            )
            baseline = baseline or step

    def _backend(self, model: Step) -> str:
        return f"{SERVED if self.recipe.serving else self.recipe.backend}{model.result}"

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


def needed(steps: Mapping[str, Step], names: Sequence[str]) -> list[Step]:
    """The named steps and all that they need, in order; all steps, if none is named.

    Raises:
        InvalidRequestError: There is no step of a name; the message lists them.
    """
    for name in names:
        if name not in steps:
            raise InvalidRequestError(f"there is no step {name!r}; there are: {', '.join(steps)}")
    wanted = set(names or steps)
    for step in reversed([*steps.values()]):
        if step.name in wanted:
            wanted.update(need.name for need in step.needs)
    return [step for step in steps.values() if step.name in wanted]


def check_options(steps: Iterable[Step]) -> None:
    """Check every step's options as its command will.

    Raises:
        InvalidRequestError: One does not fit; with the step, the option and the reason.
    """
    for step in steps:
        place = _SETTINGS[step.module]
        name = f"{step.module}.{place}" if ":" in place else f"{step.module}:{place}"
        settings: type[BaseModel] = pkgutil.resolve_name(name)
        fields = settings.model_fields
        try:
            settings.model_validate(
                {key: _as_read(value, fields.get(key)) for key, value in step.options.items()}
            )
        except ValidationError as error:
            raise InvalidRequestError(f"{step.name} ({step.module}): {explain(error)}") from None


def _as_read(value: Any, option: Any) -> Any:
    """A value as a command line gives it: one of several makes a list, tables are JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    value = str(value) if isinstance(value, Path) else value
    several = option is not None and getattr(option.annotation, "__origin__", None) is tuple
    return (value,) if several and not isinstance(value, list) else cast("Any", value)


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line has them: `{"lr": 0.1, "recompute": False}` as `--lr 0.1 --no-recompute`."""
    return [word for name, value in options.items() for word in _argument(name.replace("_", "-"), value)]


def _argument(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from (f"--{name}", str(one))
    else:
        yield from (f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value))
