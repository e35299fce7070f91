"""From a recipe to its plan: the steps, each behind those that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError
from pasta_async.training.recipe.schema import BASELINE
from pasta_async.training.recipe.serving import SERVED
from pasta_async.training.recipe.step import Step
from pasta_async.training.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pasta_async.training.recipe.schema import Flags, Recipe, Stage2, Variant

__all__ = ["Plan", "needed", "weight_name"]

_TRAINING = "pasta_async.training"


def weight_name(weight: float) -> str:
    """How a weight of quality stands in names: `lambda4`, `lambdainf`."""
    return f"lambda{weight:g}"


class Plan:
    """The steps of a recipe.

    Args:
        recipe: What is planned.
        out: The folder of the run; each step has a folder of its own name in it.

    Raises:
        InvalidRequestError: The recipe sets a flag that the plan sets itself.
    """

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe: Recipe = recipe
        self.out: Path = out
        self.steps: list[Step] = []
        """In an order in which they can be run."""
        self.models: list[Step] = []
        """Those of them that make a model which is measured; the baseline is the first."""
        base = None if recipe.base.pretrain is None else self._pretrain(recipe.base.pretrain)
        self._base: list[Step] = [] if base is None else [base]
        self._base_model: Path = Path(recipe.base.model) if base is None else base.result
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
        module: str,
        result: str,
        flags: Mapping[str, Any],
        needs: Iterable[Step] = (),
        *,
        reads: Iterable[object] = (),
        trains: bool = False,
        decodes: bool = False,
        alone: bool = False,
    ) -> Step:
        """A step; the one of that name, if there is one already."""
        for step in self.steps:
            if step.name == name:
                return step
        output = self.out / name
        files = tuple(path for path in (Path(str(one)) for one in reads if one) if path.exists())
        processes = self.recipe.processes if trains else 1
        serving = self.recipe.serving.model_dump() if decodes and self.recipe.serving else {}
        alone = alone or bool(serving)
        step = Step(
            name, module, flags, output, output / result, tuple(needs), files, processes, alone, serving
        )
        self.steps.append(step)
        if trains:
            self.models.append(step)
        return step

    def _pretrain(self, flags: Flags) -> Step:
        return self._step(
            "base", f"{_TRAINING}.pretrain", "", _set("base.pretrain", flags, out=self.out / "base")
        )

    # Data

    def _annotated(self, name: str, variant: Variant) -> Step:
        """A variant's data."""
        annotator = variant.annotator
        if annotator in ("looks", "maker"):
            return self._synthetic(f"data/{annotator}", annotator)
        plain = self._plain()
        if annotator == "given":
            return plain
        own: Flags = {"heuristic": True, "cut": annotator}
        if annotator == "endpoint":
            own = self.recipe.data.annotator
        step = f"data/{name if variant.annotate else annotator}"
        flags = _set(
            f"stage1.variants.{name}.annotate",
            {**own, **variant.annotate},
            data=plain.result,
            tokenizer=self._base_model,
            out=self.out / step,
        )
        return self._step(step, f"{_TRAINING}.annotate", "annotated.jsonl", flags, [plain, *self._base])

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
        flags = _set("data.source", source, out=self.out / "data/plain/records.jsonl")
        return self._step("data/plain", f"{_TRAINING}.corpus", "records.jsonl", flags, reads=files)

    def _synthetic(self, name: str, annotator: str, **other: Any) -> Step:
        drawn = {**(self.recipe.data.synthetic or {}), **other}
        flags = _set("data.synthetic", drawn, annotator=annotator, out=self.out / name / "records.jsonl")
        return self._step(name, f"{_TRAINING}.synthetic", "records.jsonl", flags)

    # Stage 1

    def _first_stage(self) -> None:
        stage = self.recipe.stage1
        first = stage.variants[self.compared]
        plain = _baseline_flags({**stage.train, **first.train}, stage.baseline)
        self._finetune(BASELINE, self._annotated(self.compared, first), plain)
        for name, variant in stage.variants.items():
            self._finetune(name, self._annotated(name, variant), {**stage.train, **variant.train})

    def _finetune(self, name: str, data: Step, flags: Flags) -> None:
        step = f"stage1/{name}"
        own = _set("stage1.train", flags, model=self._base_model, data=data.result, out=self.out / step)
        reads = [] if self._base else [self._base_model]
        needs = [*self._base, data]
        self._step(step, f"{_TRAINING}.finetune", "model", own, needs, reads=reads, trains=True)

    # Stage 2

    def _second_stage(self, stage: Stage2) -> None:
        start = next(step for step in self.models if step.name == f"stage1/{stage.start}")
        latest = dict.fromkeys(stage.quality_weights, start)
        for number in range(1, stage.rounds + 1):
            for weight, model in latest.items():
                # The first round's samples are of the same model for all weights: they are drawn once.
                where = f"round{number}" if number == 1 else f"round{number}/{weight_name(weight)}"
                drawn, scored = self._sample(stage, model, number, where)
                latest[weight] = self._prefer(stage, model, drawn, scored, f"round{number}", weight)
            self._evaluate()

    def _sample(self, stage: Stage2, model: Step, number: int, where: str) -> tuple[Step, Step]:
        """Samples and their scores."""
        prompts, baseline = self._prompts(stage, number), self.models[0]
        name = f"samples/{where}"
        flags = _set(
            "stage2.sample",
            stage.sample,
            backend=self._backend(model),
            baseline=self._backend(baseline),
            prompts=prompts.result,
            out=self.out / name / "samples.jsonl",
        )
        needs = [model, baseline, prompts]
        drawn = self._step(name, f"{_TRAINING}.sample", "samples.jsonl", flags, needs, decodes=True)
        name = f"scores/{where}"
        out = self.out / name / "scores.jsonl"
        flags = _set("stage2.score", stage.score, samples=drawn.result, out=out)
        return drawn, self._step(name, f"{_TRAINING}.score", "scores.jsonl", flags, [drawn])

    def _prefer(
        self, stage: Stage2, model: Step, drawn: Step, scored: Step, where: str, weight: float
    ) -> Step:
        name = f"{where}/{weight_name(weight)}"
        flags = _set(
            "stage2.train",
            stage.train,
            model=model.result,
            samples=drawn.result,
            scores=scored.result,
            quality_weight=f"{weight:g}",
            out=self.out / name,
        )
        return self._step(name, f"{_TRAINING}.prefer", "model", flags, [model, drawn, scored], trains=True)

    def _prompts(self, stage: Stage2, number: int) -> Step:
        """The prompts of a round: fresh ones, so far as the task makes them."""
        name = f"prompts/round{number}"
        if self.recipe.data.synthetic is not None:
            seed = int(str(self.recipe.data.synthetic.get("seed", 0))) + number
            return self._synthetic(name, "nobody", count=stage.prompts, seed=seed)
        plain = self._plain()
        flags = {
            "data": plain.result,
            "skip": (number - 1) * stage.prompts,
            "count": stage.prompts,
            "out": self.out / name / "records.jsonl",
        }
        return self._step(name, f"{_TRAINING}.recipe.draw", "records.jsonl", flags, [plain])

    # Evaluation

    def _evaluate(self) -> None:
        """Measure the models that there are; first the baseline, with which the others are compared."""
        baseline: list[Step] = []
        table = self.recipe.evaluation.flags
        for model in list(self.models):
            name = f"evaluation/{model.name}"
            own = {"baseline": baseline[0].output} if baseline else {}
            flags = _set("evaluation.flags", table, backend=self._backend(model), **own, out=self.out / name)
            needs, reads = [model, *baseline], [table.get("prompts")]
            step = self._step(
                name,
                "pasta_async.evals.frontier",
                "result.json",
                flags,
                needs,
                reads=reads,
                decodes=True,
                alone=True,
            )
            baseline = baseline or [step]

    def _backend(self, model: Step) -> str:
        return f"{SERVED if self.recipe.serving else self.recipe.backend}{model.result}"


def needed(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """Those steps and all that they need, in order.

    Raises:
        InvalidRequestError: There is no step of a name; the message lists them.
    """
    known = {step.name: step for step in steps}
    for name in names:
        if name not in known:
            raise InvalidRequestError(f"there is no step {name!r}; there are: {', '.join(known)}")
    wanted = set(names)
    for step in reversed(steps):
        if step.name in wanted:
            wanted.update(need.name for need in step.needs)
    return [step for step in steps if step.name in wanted]


def _set(where: str, flags: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """A table of flags with those that the plan sets.

    Raises:
        InvalidRequestError: The table has one of these.
    """
    if twice := [name for name in own if name in flags]:
        raise InvalidRequestError(
            f"{where}: {', '.join(twice)} is set by the plan, and has to go from the recipe"
        )
    return {**own, **flags}


def _baseline_flags(train: Flags, baseline: Flags) -> Flags:
    """The baseline's flags: plain answers, and as many updates as the others have.

    A model of both forms has two examples of each answer in an epoch, the baseline has one.
    """
    epochs = train.get("epochs", TrainerSettings.model_fields["epochs"].default)
    longer: Flags = {}
    if train.get("form") == "both" and isinstance(epochs, int | float):
        longer = {"epochs": 2 * epochs}
    return {**train, **longer, "form": "plain", **baseline}
