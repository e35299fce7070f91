"""Recipes: a whole path from a base model to measured models, as a TOML file. `training.run` runs one."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, NonNegativeFloat, ValidationError, model_validator

from pasta_async.errors import InvalidRequestError
from pasta_async.training.annotate import Cut
from pasta_async.training.corpus import StrictModel, explain

Options = dict[str, Any]
"""Options of a command, without the dashes: `{lr = 1e-5}` is `--lr 1e-05`."""

Annotator = Literal["noisy", "maker", "given", "endpoint", Cut, "likelihood"]
"""Who puts in the tags: the synthetic task's noisy annotator or its maker; those that the data have; a model
behind an endpoint; structure alone, by how it cuts; what the base finds independent."""

_NEEDED = {"noisy": "synthetic", "maker": "synthetic", "given": "source", "endpoint": "annotator"}
"""The table of `data` that an annotator needs."""

BASELINE = "baseline"
"""The variant that every recipe has: the same data without tags, trained equally long."""

PACKAGED: Path = Path(__file__).parent / "recipes"
"""The folder of the recipes that come with the package."""


class Data(StrictModel):
    """Prompts with answers: of the synthetic task, of a data set, or prompts and the base's own answers."""

    synthetic: Options | None = None
    """Options of `training.synthetic`."""
    source: Options | None = None
    """Options of `training.corpus`."""
    prompts: Options | None = None
    """Options of `training.prompts`; the base answers them."""
    answers: Options = Field(default={})
    """Options of `training.answers`, for `prompts`."""
    annotator: Options | None = None
    """Options of `training.annotate`, for `annotator = "endpoint"`."""


class Variant(StrictModel):
    """A model of stage 1, by who annotated its data; options that differ from the others'."""

    annotator: Annotator
    annotate: Options = Field(default={})
    train: Options = Field(default={})


class Stage1(StrictModel):
    """Supervised finetuning (options of `training.finetune`) for each variant, and for the baseline."""

    train: Options = Field(default={})
    variants: dict[str, Variant] = Field(min_length=1)


class Stage2(StrictModel):
    """Preference optimisation: rounds of sampling, scoring and training, for each weight of quality."""

    start: str
    """The variant of stage 1 that the first round starts from."""
    rounds: int = Field(default=2, ge=1)
    quality_weights: tuple[NonNegativeFloat, ...] = Field(default=(1, 2, 4, 8, float("inf")), min_length=1)
    prompts: int = Field(ge=1)
    """Of each round; every round has its own."""
    sample: Options = Field(default={})
    score: Options = Field(default={})
    train: Options = Field(default={})


class Serving(StrictModel):
    """How models are served while samples are drawn and answers measured."""

    command: str
    """Of a server, with {model}, {port} and {gpu}, its first GPU."""
    gpus: int = Field(default=1, ge=1)
    """Of each server; two are up at the same time."""
    port: int = Field(default=31000, ge=1)
    """Of the first server; the second has the next one."""
    start_timeout: float = Field(default=1800, gt=0)
    """Seconds that a server may take to load."""


class Recipe(StrictModel):
    """A whole path from a base model to measured models."""

    title: str = ""
    processes: int = Field(default=1, ge=1)
    """That train together; above 1 behind torchrun."""
    serving: Serving | None = None
    """Servers decode the samples and the answers that are measured; else the embedded engine does."""
    base: Annotated[str, Field(min_length=1)] | Options
    """A checkpoint folder, which its adapters name, or options of `training.pretrain`, which makes one."""
    data: Data
    stage1: Stage1
    stage2: Stage2 | None = None
    evaluation: Options = Field(default={})
    """How every model is measured: options of `evals.frontier`."""
    ship: Options = Field(default={})
    """Options of `pasta_async.training.ship`, for models that were trained as adapters."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        data, variants = self.data, self.stage1.variants
        if sum(one is not None for one in (data.synthetic, data.source, data.prompts)) != 1:
            raise ValueError("data: give one of the tables `synthetic`, `source` and `prompts`")
        for name, variant in variants.items():
            needed = _NEEDED.get(variant.annotator)
            if needed and getattr(data, needed) is None:
                needs = f"annotator {variant.annotator!r} needs a table data.{needed}"
                raise ValueError(f"stage1.variants.{name}: {needs}")
        if BASELINE in variants:
            raise ValueError(f"stage1.variants: `{BASELINE}` is made in any case; it is no variant")
        if self.stage2 and self.stage2.start not in variants:
            raise ValueError(f"stage2.start: {self.stage2.start!r} is no variant of stage 1")
        if self.stage2 and data.source is not None and not data.source.get("limit"):
            raise ValueError("data.source.limit: say how many rows are stage 1's; stage 2 has those behind")
        return self


def find_recipe(name: Path | str, beside: Path | None = None) -> Path:
    """The file of a recipe: a path (from the folder `beside`, or from here), or the name of a packaged one.

    Raises:
        InvalidRequestError: There is no such file; the message names the packaged ones.
    """
    for place in ((beside or Path()) / name, PACKAGED / f"{name}.toml"):
        if place.is_file():
            return place
    packaged = ", ".join(sorted(one.stem for one in PACKAGED.glob("*.toml")))
    raise InvalidRequestError(f"there is no recipe {name}; the package has {packaged}")


def read_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    `extends = "OTHER.toml"` lays it over another one: tables are joined, other values replaced. `{here}` is
    the recipe's folder; other paths are from the working directory. Each of the settings, `key=value` with a
    dotted key and a value as in TOML (or a bare string), is laid over the file; without a value, it takes the
    key out.

    Raises:
        InvalidRequestError: The file cannot be read, or something in it does not fit; with its place.
    """
    table = _read(path, ())
    for setting in settings:
        table = _joined(table, _setting(setting))
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise InvalidRequestError(f"{path}: {explain(error)}") from None


def _read(path: Path, extending: tuple[Path, ...]) -> Options:
    if path.resolve() in extending:
        raise InvalidRequestError(f"{path} extends itself")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8").replace("{here}", str(path.parent)))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read as a recipe: {error}") from error
    if (other := table.pop("extends", None)) is None:
        return table
    return _joined(_read(find_recipe(str(other), path.parent), (*extending, path.resolve())), table)


def _joined(under: Any, over: Any) -> Any:
    """One table laid over another; None takes a key out."""
    if not isinstance(over, dict):
        return over
    below, above = cast("Options", under if isinstance(under, dict) else {}), cast("Options", over)
    joined = below | {key: _joined(below.get(key), value) for key, value in above.items()}
    return {key: value for key, value in joined.items() if value is not None}


def _setting(text: str) -> Options:
    """`key.of.it=value` as tables."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"--set {text}: write key=value")
    try:
        table: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table = value.strip() or None
    for part in reversed(key.strip().split(".")):
        table = {part: table}
    return table
