"""What a recipe says."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "BASELINE",
    "Annotator",
    "Base",
    "Data",
    "Evaluation",
    "Flags",
    "Recipe",
    "Serving",
    "Stage1",
    "Stage2",
    "Variant",
]

Flags = dict[str, bool | int | float | str | list[int | float | str] | dict[str, Any]]
"""Flags of a command, without the dashes: `{lr = 1e-5}` is `--lr 1e-05`."""

Annotator = Literal["looks", "maker", "given", "endpoint", "points", "details"]
"""Who puts in the tags: the synthetic task's noisy annotator or its maker; those that the data have; a model
behind an endpoint; structure alone, by points or by details."""

BASELINE = "baseline"
"""The variant that every recipe has: the same data without tags, trained equally long."""


class _Table(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Base(_Table):
    """What stage 1 starts from."""

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
    annotate: Flags = Field(default={}, description="further flags of training.annotate")
    train: Flags = Field(default={}, description="flags of training.finetune that differ from the others'")


class Stage1(_Table):
    """Supervised finetuning, once for each variant, and once for the baseline."""

    train: Flags = Field(default={}, description="flags of training.finetune")
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
    sample: Flags = Field(default={}, description="flags of training.sample")
    score: Flags = Field(default={}, description="flags of training.score")
    train: Flags = Field(default={}, description="flags of training.prefer")

    @model_validator(mode="after")
    def _weights(self) -> Self:
        if min(self.quality_weights) < 0 or len({*self.quality_weights}) < len(self.quality_weights):
            raise ValueError("quality_weights must be different from each other, and none negative")
        return self


class Serving(_Table):
    """How models are served while samples are drawn and answers measured (`training.recipe.serving`)."""

    command: str = Field(description="of a server, with {model}, {port} and {gpu}, its first GPU")
    gpus: int = Field(default=1, ge=1, description="of each server; two are up at the same time")
    port: int = Field(default=31000, ge=1, description="of the first server; the second has the next one")


class Evaluation(_Table):
    """How every model is measured."""

    flags: Flags = Field(default={}, description="flags of evals.frontier")


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
            if variant.annotator in ("looks", "maker") and self.data.synthetic is None:
                raise ValueError(
                    f"stage1.variants.{name}: {variant.annotator} annotates `data.synthetic` alone"
                )
            if variant.annotator == "endpoint" and not self.data.annotator:
                raise ValueError(
                    f"stage1.variants.{name}: an endpoint annotates, and `data.annotator` is missing"
                )
            if variant.annotator == "given" and self.data.source is None:
                raise ValueError(f"stage1.variants.{name}: only the records of `data.source` have given tags")
        if self.serving is not None and self.evaluation.flags.get("timed") != 0:
            raise ValueError("evaluation.flags.timed: a model that is served is not timed here; set it to 0")
        if self.stage2 is not None and self.stage2.start not in self.stage1.variants:
            known = ", ".join(self.stage1.variants)
            raise ValueError(f"stage2.start: {self.stage2.start!r} is no variant of stage 1 ({known})")
        return self
