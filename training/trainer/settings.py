"""The settings of every training stage, and what follows from them: order of the data, learning rate."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, Json

from pasta_async.cli.command import CommandSettings

_ROW, _CPU_ROW = 4096, 512


class TrainerSettings(CommandSettings):
    """How to train."""

    out: Path = Field(description="folder of the run: metrics, checkpoints, and the trained model, OUT/model")
    batch: int = Field(default=8, ge=1, description="examples of an update, over all processes")
    row_tokens: int = Field(
        default=0,
        ge=0,
        multiple_of=16,
        description="tokens of a packed row, of which a process computes one at a time (0: 4,096; on a CPU "
        "512, and as many as an example needs up to 4,096)",
    )
    epochs: float = Field(default=4, gt=0, description="how often the data are used")
    steps: int = Field(default=0, ge=0, description="updates in all, instead of epochs (0: by epochs)")
    lr: float = Field(default=0, ge=0, description="peak learning rate (0: 1e-5, for adapters 5e-4)")
    tag_rate: float = Field(
        default=0,
        ge=0,
        description="how many times as fast the rows of the tag tokens learn (0: 20 for adapters of a model "
        "that did not know the tags, else 1)",
    )
    warmup: int = Field(default=0, ge=0, description="updates over which the learning rate rises")
    decay: float = Field(default=1, gt=0, le=1, description="share of the other updates over which it falls")
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="muon: for the matrices inside the layers, AdamW for the rest"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="decay of the matrices inside the layers")
    clip: float = Field(default=1.0, gt=0, description="largest norm of a gradient")
    seed: int = Field(default=0, description="seed of the order of the data, and of new weights")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to train")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="of the computation, weights stay float32; auto: bfloat16 on CUDA, and "
        "for large models on a CPU that has its products; else float32",
    )
    recompute: bool = Field(default=False, description="gradient checkpointing: compute activations again")
    lora_rank: int = Field(default=0, ge=0, description="train adapters of this rank only (0: all weights)")
    lora_alpha: float = Field(default=16.0, gt=0, description="scale of the adapters, divided by their rank")
    save_every: int = Field(default=200, ge=1, description="updates between checkpoints")
    stop_at: int = Field(default=0, ge=0, description="leave after this update, to go on later (0: do not)")
    drop_long: bool = Field(default=False, description="leave out examples that are too long, and count them")
    export_dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="float32", description="of what is exported; halves may round away what was learned"
    )
    threads: int = Field(default=0, ge=0, description="CPU threads of a process (0: torch's own number)")

    adapter_lr: ClassVar[float] = 5e-4

    def resolved(self, new_tags: bool) -> Self:
        """The same with rates in the place of zeros; `new_tags` is whether the base model lacks the tags."""
        lr = self.lr or (self.adapter_lr if self.lora_rank else 1e-5)
        tag_rate = self.tag_rate or (20.0 if self.lora_rank and new_tags else 1.0)
        return self.model_copy(update={"lr": lr, "tag_rate": tag_rate})

    @property
    def longest_row(self) -> int:
        """Tokens that an example may have."""
        return self.row_tokens or _ROW

    def filled_row(self, device: str) -> int:
        """Tokens up to which rows are filled on a kind of device; attention pays for the square of a row."""
        return self.row_tokens or (_ROW if device == "cuda" else _CPU_ROW)


class StageSettings(TrainerSettings):
    """How to train a model that there is."""

    model: Path = Field(
        description="checkpoint folder to start from (Llama, Qwen2 or Qwen3), or an adapter to train on"
    )
    template_kwargs: Json[dict[str, Any]] = Field(
        default={},
        description="further values for the chat template, as JSON, in prefer those of the sampling: "
        '{"enable_thinking": false}',
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The examples, shuffled anew in each epoch, and the learning rate of an update, by its number alone."""

    settings: TrainerSettings
    numbers: Sequence[int]
    """Of the examples that are trained on."""
    shuffled: bool = True

    @property
    def epoch_steps(self) -> int:
        """Updates of one epoch; the last one may have fewer examples."""
        return math.ceil(len(self.numbers) / self.settings.batch)

    @property
    def steps(self) -> int:
        """Updates in all."""
        return self.settings.steps or max(1, round(self.settings.epochs * self.epoch_steps))

    def examples_of(self, step: int) -> list[int]:
        """The numbers of the examples of an update, the first of which is step 0."""
        epoch, place = divmod(step, self.epoch_steps)
        count, start = len(self.numbers), place * self.settings.batch
        order = _order(count, self.settings.seed, epoch) if self.shuffled else range(count)
        return [self.numbers[index] for index in order[start : start + self.settings.batch]]

    def rate(self, step: int) -> float:
        """The learning rate of an update: it rises to the peak, stays, and falls linearly to zero."""
        warmup = self.settings.warmup
        rising = (step + 1) / max(1, warmup)
        falling = (self.steps - step) / max(1.0, self.settings.decay * (self.steps - warmup))
        return self.settings.lr * min(1.0, rising, falling)


@lru_cache(maxsize=2)
def _order(examples: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(examples))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)
