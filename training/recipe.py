"""Recipes: a whole path from a base model to measured models, as a TOML file. `training.run` runs one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.records import explain

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BASELINE",
    "PACKAGED",
    "Flags",
    "Recipe",
    "Serving",
    "Stage2",
    "Variant",
    "find_recipe",
    "read_recipe",
]

Flags = dict[str, bool | int | float | str | list[int | float | str] | dict[str, Any]]
"""Options of a command, without the dashes: `{lr = 1e-5}` is `--lr 1e-05`."""

Annotator = Literal["noisy", "maker", "given", "endpoint", "points", "details"]
"""Who puts in the tags: the synthetic task's noisy annotator or its maker; those that the data have; a model
behind an endpoint; structure alone, by points or by details."""

BASELINE = "baseline"
"""The variant that every recipe has: the same data without tags, trained equally long."""

PACKAGED: Path = Path(__file__).parent / "recipes"
"""The folder of the recipes that come with the package."""


class _Table(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Base(_Table):
    """What stage 1 starts from: exactly one of a model folder and a table for pretraining."""

    model: str = Field(default="", description="a checkpoint folder of Llama, Qwen2 or Qwen3")
    pretrain: Flags | None = Field(default=None, description="or: train one (training.pretrain)")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.model) == (self.pretrain is not None):
            raise ValueError("name a model, or give a table `pretrain`, and not both")
        return self


class Data(_Table):
    """Prompts with answers, and a model that may annotate them."""

    synthetic: Flags | None = Field(default=None, description="the synthetic task (training.synthetic)")
    source: Flags | None = Field(default=None, description="or: a file or a data set (training.corpus)")
    annotator: Flags = Field(default={}, description="of annotator = 'endpoint' (training.annotate)")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.synthetic is None) == (self.source is None):
            raise ValueError("give a table `synthetic` or a table `source`, and not both")
        return self


class Variant(_Table):
    """A model of stage 1, by who annotated its data."""

    annotator: Annotator
    annotate: Flags = Field(default={}, description="further options of training.annotate")
    train: Flags = Field(default={}, description="options of training.finetune that differ from the others'")


class Stage1(_Table):
    """Supervised finetuning, once for each variant, and once for the baseline."""

    train: Flags = Field(default={}, description="options of training.finetune")
    baseline: Flags = Field(default={}, description="those of the baseline that differ")
    variants: dict[str, Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if BASELINE in self.variants:
            raise ValueError(f"`{BASELINE}` is made of the same data in any case; it is no variant")
        return self


class Stage2(_Table):
    """Preference optimisation: rounds of sampling, scoring and training, for each weight of quality."""

    start: str = Field(description="the variant of stage 1 that the first round starts from")
    rounds: int = Field(default=2, ge=1)
    quality_weights: tuple[float, ...] = Field(default=(1, 2, 4, 8, float("inf")), min_length=1)
    prompts: int = Field(ge=1, description="of each round; every round has its own")
    sample: Flags = Field(default={}, description="options of training.sample")
    score: Flags = Field(default={}, description="options of training.score")
    train: Flags = Field(default={}, description="options of training.prefer")

    @model_validator(mode="after")
    def _weights(self) -> Self:
        if min(self.quality_weights) < 0 or len({*self.quality_weights}) < len(self.quality_weights):
            raise ValueError("quality_weights must be different from each other, and none negative")
        return self


class Serving(_Table):
    """How models are served while samples are drawn and answers measured."""

    command: str = Field(description="of a server, with {model}, {port} and {gpu}, its first GPU")
    gpus: int = Field(default=1, ge=1, description="of each server; two are up at the same time")
    port: int = Field(default=31000, ge=1, description="of the first server; the second has the next one")
    start_timeout: float = Field(default=1800, gt=0, description="seconds that a server may take to load")


class Evaluation(_Table):
    """How every model is measured."""

    flags: Flags = Field(default={}, description="options of evals.frontier")


class Recipe(_Table):
    """A whole path from a base model to measured models."""

    title: str = Field(default="", description="of the report")
    processes: int = Field(default=1, ge=1, description="that train together; above 1 behind torchrun")
    backend: Literal["local:", "sglang:"] = Field(
        default="local:", description="decodes the samples and the answers that are measured"
    )
    serving: Serving | None = Field(default=None, description="or: servers do, one for each model")
    base: Base
    data: Data
    stage1: Stage1
    stage2: Stage2 | None = None
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, variant in self.stage1.variants.items():
            why = None
            if variant.annotator in ("noisy", "maker") and self.data.synthetic is None:
                why = f"{variant.annotator} annotates `data.synthetic` alone"
            elif variant.annotator == "endpoint" and not self.data.annotator:
                why = "an endpoint annotates, and `data.annotator` is missing"
            elif variant.annotator == "given" and self.data.source is None:
                why = "only the records of `data.source` have given tags"
            if why:
                raise ValueError(f"stage1.variants.{name}: {why}")
        if self.serving is not None and self.evaluation.flags.get("timed") != 0:
            raise ValueError("evaluation.flags.timed: a model that is served is not timed here; set it to 0")
        if self.stage2 is not None and self.stage2.start not in self.stage1.variants:
            known = ", ".join(self.stage1.variants)
            raise ValueError(f"stage2.start: {self.stage2.start!r} is no variant of stage 1 ({known})")
        return self


def find_recipe(name: Path | str, beside: Path | None = None) -> Path:
    """The file of a recipe: a path (from the folder `beside`, or from here), or the name of a packaged one.

    Raises:
        InvalidRequestError: There is no such file; the message names the packaged ones.
    """
    path = Path(name)
    for place in (path if beside is None else beside / path, PACKAGED / path, PACKAGED / f"{path}.toml"):
        if place.is_file():
            return place
    packaged = ", ".join(sorted(one.stem for one in PACKAGED.glob("*.toml")))
    raise InvalidRequestError(f"there is no recipe {name}; the package has {packaged}")


def read_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    `extends = "OTHER.toml"` lays it over another one: tables are joined, other values replaced. A value that
    begins with `./` is a path from the recipe's folder, others are from the working directory.

    Args:
        path: Of the file.
        settings: `key=value` with a dotted key and a value as in TOML (or a bare string); they come last.
            Without a value, the key is taken out.

    Raises:
        InvalidRequestError: The file cannot be read, or something in it does not fit; with its place.
    """
    table = _read(path, ())
    for setting in settings:
        _set(table, setting)
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise InvalidRequestError(f"{path}: {explain(error)}") from None


def _read(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in below:
        raise InvalidRequestError(f"{path} extends itself")
    try:
        table = _located(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read as a recipe: {error}") from error
    if (other := table.pop("extends", None)) is None:
        return table
    return _joined(_read(find_recipe(str(other), path.parent), (*below, path.resolve())), table)


def _located(value: Any, folder: Path) -> Any:
    """Values that begin with `./` as paths from a folder, at any depth."""
    if isinstance(value, dict):
        return {key: _located(one, folder) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_located(one, folder) for one in cast("list[Any]", value)]
    return str(folder / value) if isinstance(value, str) and value.startswith("./") else value


def _joined(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    below, above = cast("dict[str, Any]", under), cast("dict[str, Any]", over)
    return below | {key: _joined(below.get(key), value) for key, value in above.items()}


def _set(table: dict[str, Any], setting: str) -> None:
    """Set or remove the value that `key.of.it=value` names."""
    place, equals, value = setting.partition("=")
    if not equals:
        raise InvalidRequestError(f"--set {setting}: write key=value")
    *above, last = place.strip().split(".")
    for key in above:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"--set {setting}: {key} is no table")
    if value.strip():
        table[last] = _value(value.strip())
    else:
        table.pop(last, None)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
