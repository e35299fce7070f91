"""The settings of the three ways to annotate."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pasta_async.cli.command import Count
from pasta_async.training.annotate.structure import LEAST, Cut
from pasta_async.training.corpus import SourceSettings
from pasta_async.training.endpoint import EndpointSettings


class AnnotateSettings(SourceSettings, EndpointSettings):
    """How to annotate; the recipe `pasta-smol` has other thresholds (docs/pasta-smol.md: what they do)."""

    out: Path = Field(description="folder of the run")
    base_url: str = Field(default="", description="of the endpoint: http://host:30000/v1")
    model: str = Field(default="", description="name of the model at the endpoint, or folder of a model")
    tries: int = Field(default=3, ge=1, description="replies for an answer before it is rejected")
    ask_from: int = Field(
        default=2 * LEAST, ge=0, description="tokens from which an answer is sent; shorter ones stay plain"
    )
    tokenizer: Path | None = Field(
        default=None, description="model folder whose tokenizer counts the estimates (default: a rough count)"
    )
    heuristic: bool = Field(default=False, description="annotate by structure alone, without an endpoint")
    by_likelihood: bool = Field(
        default=False, description="annotate by what the model in the folder --model finds independent"
    )
    tau: float = Field(default=0.5, description="bits a token that a chunk may cost without its siblings")
    form: float = Field(default=1.5, description="bits a token that an item of a list may cost more")
    sync_tau: float = Field(
        default=0.8, description="bits a token that the text behind chunks may cost without a sync"
    )
    row_tokens: Count = Field(default=1024, description="of --by-likelihood: tokens of a forward pass")
    cut: Cut = Field(default="points", description="of --heuristic, --by-likelihood: what is promised")
    least: Count = Field(default=LEAST, description="of both: tokens from which a piece is promised")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.by_likelihood and (self.heuristic or not self.model):
            told = "--by-likelihood needs the folder of a model, --model FOLDER, and no --heuristic"
            raise ValueError(told)
        remote = self.base_url.startswith(("http://", "https://")) and self.model
        if not (self.heuristic or self.by_likelihood or remote):
            raise ValueError(
                "give --base-url http://host:30000/v1 and --model, or choose --heuristic or --by-likelihood"
            )
        return self

    @property
    def annotator(self) -> str:
        """For `Record.annotator`."""
        if self.by_likelihood:
            return f"likelihood:{Path(self.model).resolve().name}"
        return f"structure:{self.cut}" if self.heuristic else self.model
