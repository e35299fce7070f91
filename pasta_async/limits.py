"""How much one answer, and one client, may take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pasta_async.options import Options

__all__ = ["Limits"]


class Limits(Options):
    """Limits of an answer and of the client it runs on. Unknown fields are refused.

    Threads above a limit queue; they are never dropped, and what they write does not depend on when they run.
    The token limit of an answer is `Sampling.max_tokens`.
    """

    max_threads: int = Field(default=16, ge=1)
    """Threads of one answer that decode at once, the main thread counted."""
    client_threads: int = Field(default=64, ge=1)
    """Threads over all answers of a client that decode at once."""
    chunk_tokens: int | None = Field(default=None, ge=1)
    """Cap of a chunk in tokens; None: 4 x the promise's estimate + 64, or 512 without an estimate."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the prompt; None: what the model's context holds."""
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds for the whole answer, time in a queue counted."""
    retries: int = Field(default=1, ge=0, le=100)
    """How often a request that failed before its first token is sent again, and an answer starts again whose
    server was lost before anything of it was shown."""
    on_failure: Literal["fail", "sequence"] = "fail"
    """A thread that fails after that ends the answer, or is taken up once more where it broke off, alone."""

    def chunk_cap(self, estimate: int | None) -> int:
        """Tokens that a chunk may have, given its promise's estimate."""
        if self.chunk_tokens is not None:
            return self.chunk_tokens
        return 512 if estimate is None else 4 * estimate + 64
