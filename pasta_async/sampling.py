"""How the next token is chosen: one model for every backend."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pasta_async.options import Options

__all__ = ["Sampling"]


class Sampling(Options):
    """Sampling parameters of an answer. Unknown fields are refused."""

    temperature: float = Field(default=0.0, ge=0.0, le=10.0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the smallest set of tokens whose probability reaches this."""
    top_k: int | None = Field(default=None, ge=1)
    """Keep the k likeliest tokens."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Keep tokens at least this likely, relative to the likeliest."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the answer; every thread derives its own from it."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end the answer when they appear in its visible text."""
    max_tokens: int = Field(default=16_384, ge=1)
    """Tokens of the whole answer, tags counted, in document order: main's up to a promise, its chunk's,
    main's behind it. It is cut where the same answer in sequence would be; one that fits is never shortened.
    `Limits.total_tokens` bounds all that is generated."""
