"""The settings that every training stage has."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["TrainerSettings"]


class TrainerSettings(BaseModel):
    """How to train. Every field is an option of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    model: Path = Field(description="checkpoint folder to start from (Llama, Qwen2 or Qwen3)")
    out: Path = Field(description="folder of the run: metrics, checkpoints, and the trained model, OUT/model")
    batch: int = Field(default=8, ge=1, description="examples of an update, over all processes")
    row_tokens: int = Field(
        default=4096, ge=16, description="tokens of a packed row; a process computes one row at a time"
    )
    epochs: float = Field(default=4, gt=0, description="how often the data are used")
    steps: int = Field(default=0, ge=0, description="updates in all, instead of epochs (0: by epochs)")
    lr: float = Field(default=1e-5, gt=0, description="peak learning rate; it falls linearly to zero")
    warmup: int = Field(default=0, ge=0, description="updates over which the learning rate rises")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's decay of the matrices")
    clip: float = Field(default=1.0, gt=0, description="largest norm of a gradient")
    seed: int = Field(default=0, description="seed of the order of the data, and of new weights")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to train")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="of the computation, weights stay float32; auto: bfloat16 on CUDA, else float32",
    )
    attention: Literal["auto", "sdpa", "flex_attention"] = Field(
        default="auto", description="auto: flex_attention on CUDA, else sdpa"
    )
    recompute: bool = Field(
        default=False, description="gradient checkpointing: activations are computed again, not kept"
    )
    lora_rank: int = Field(default=0, ge=0, description="train adapters of this rank only (0: all weights)")
    lora_alpha: float = Field(default=16.0, gt=0, description="scale of the adapters, divided by their rank")
    save_every: int = Field(default=200, ge=1, description="updates between checkpoints")
    stop_at: int = Field(default=0, ge=0, description="leave after this update, to go on later (0: do not)")
    track: Literal["auto", "none"] = Field(
        default="auto", description="where metrics also go; auto: TensorBoard where it is installed"
    )
    drop_long: bool = Field(
        default=False, description="leave out examples that do not fit a row or the model, and count them"
    )
    export_dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="bfloat16", description="of the weights in OUT/model"
    )
    threads: int = Field(default=0, ge=0, description="CPU threads of a process (0: torch's own number)")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.row_tokens % 16:
            raise ValueError(f"row_tokens must be a multiple of 16, not {self.row_tokens}")
        return self
