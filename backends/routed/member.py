"""One of several backends: whether it can be used, what it decodes, and what it serves."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pasta_async.errors import (
    BackendError,
    BackendStatusError,
    BackendTransportError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from pasta_async.protocol import Backend, ModelInfo

__all__ = ["Checkable", "Member", "Model", "is_gone"]

_LOG = logging.getLogger(__name__)

_SAMPLE = "One prompt, 2 servers: naïve “quotes”,\n\ttabs and <sync/> 12345."
"""Text that different tokenizers encode differently."""

_BAD_GATEWAY = (502, 504)
"""What a proxy in front of a server says when it cannot reach it."""


@runtime_checkable
class Checkable(Protocol):
    """A backend that can be asked anew whether it can be used; of others, `connect` has to tell."""

    async def check(self) -> ModelInfo:
        """What the backend serves by now. Raises as `connect` does."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    """What a member serves, as far as it can be told apart: weights cannot."""

    info: ModelInfo
    sample: tuple[int, ...]
    """Ids of a text, which tell tokenizers apart."""

    def difference(self, other: Model) -> str:
        """In what the other is another model; empty if in nothing."""
        for name in ("name", "vocab_size", "end_ids", "tags"):
            mine, its = getattr(self.info, name), getattr(other.info, name)
            if mine != its:
                return f"{name} {mine!r} and {its!r}"
        return "" if self.sample == other.sample else "tokenizers that encode the same text differently"


@dataclass(eq=False, slots=True)
class Member:
    """A backend among others."""

    name: str
    """Its address."""
    backend: Backend
    error: BackendError | None = None
    """Why it is out; None while it is in."""
    open_requests: int = 0
    """Requests that it decodes for us."""
    epoch: int = 0
    """How often it was taken out: answers that it had before are lost."""
    malformed: set[str] = field(default_factory=set[str])
    """Answers that ended with a malformed reply since it last finished a request as it should."""

    @property
    def live(self) -> bool:
        """Whether it is in."""
        return self.error is None

    async def learn(self) -> Model:
        """Ask what it serves. Cancelling it leaves nothing behind.

        Raises:
            BackendError: It cannot be used, now or at all.
        """
        backend = self.backend
        try:
            info = await (backend.check() if isinstance(backend, Checkable) else backend.connect())
            return Model(info, tuple(await backend.encode(_SAMPLE)))
        except BackendError:
            raise
        except Exception as error:
            _LOG.exception("%s failed", self.name)
            unexpected = BackendError(f"{type(error).__name__}: {error}")
            unexpected.retryable = True
            raise unexpected from error

    async def relearn(self, promised: Model) -> None:
        """Ask whether it serves what all of them do.

        Raises:
            BackendError: It does not.
        """
        model = await self.learn()
        mine, common = model.info, promised.info
        difference = promised.difference(model)
        if mine.context_length < common.context_length:
            difference = f"context_length {common.context_length} and {mine.context_length}"
        if common.honours_seeds and not mine.honours_seeds:
            difference = "seeds that are honoured and not"
        if difference:
            raise UnsupportedModelError(
                f"{self.name} came back with another model than the rest: {difference}"
            )


def is_gone(error: BackendError) -> bool:
    """Whether an error is about the server, not the request: the connection broke off, or never came up.

    A 502 and a 504 are a proxy's, which says so of the server behind it; a 503 is a full queue.
    """
    if isinstance(error, BackendStatusError):
        return error.status in _BAD_GATEWAY
    return isinstance(error, BackendTransportError)
