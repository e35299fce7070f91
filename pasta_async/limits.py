"""How much one answer, and one client, may take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pasta_async.options import Options

__all__ = ["Limits"]


class Limits(Options):
    """Limits of an answer and of the client it runs on. Unknown fields are refused.

    Threads above a limit queue; they are never dropped, and what they write does not depend on when they run.
    The length of an answer is limited by `Sampling.max_tokens`.
    """

    max_threads: int = Field(default=16, ge=1)
    """Threads of one answer that decode at once, the main thread counted."""
    client_threads: int = Field(default=64, ge=1)
    """Threads over all answers of a client that decode at once."""
    chunk_tokens: int | None = Field(default=None, ge=1)
    """Cap of a chunk in tokens; None: 4 x the promise's estimate + 64, or 512 without an estimate."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Tokens that all threads of an answer may generate together, for those who pay by the token: what
    is decoded behind its `max_tokens` before that is known counts too. Where it ends an answer
    (`finish_reason` is then "length") depends on timing."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the prompt; None: what the model's context holds."""
    timeout: float | None = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds for the whole answer: connecting (and loading a local model, unless `Client.connect` did that
    before), waiting for its turn, encoding, decoding, retries. None: no limit."""
    retries: int = Field(default=2, ge=0, le=100)
    """How often a request is sent again that failed before its first token, in a way that may pass: 0.25 s
    later, doubling with each try, or when the server said. Connecting and encoding likewise. An answer whose
    server was lost before anything of it was shown starts again elsewhere as often. Time-outs are final."""
    on_failure: Literal["fail", "sequence"] = "fail"
    """A thread that fails after that ends the answer, or is taken up once more where it broke off, alone."""

    def over(self, base: Limits) -> Limits:
        """These limits laid over others: fields that were set here win, the rest is as there."""
        return base.model_copy(update=self.model_dump(exclude_unset=True))

    def chunk_cap(self, estimate: int | None) -> int:
        """Tokens that a chunk may have, given its promise's estimate."""
        if self.chunk_tokens is not None:
            return self.chunk_tokens
        return 512 if estimate is None else 4 * estimate + 64
