"""One of several backends: whether it can be used, what it decodes, and what it serves."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pasta_async.errors import (
    BackendError,
    BackendStatusError,
    BackendTransportError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from pasta_async.protocol import Backend, ModelInfo

__all__ = ["Checkable", "Member", "MemberState", "Model", "is_gone"]

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
class MemberState:
    """What a member does at the moment."""

    name: str
    live: bool
    open_requests: int
    """Requests that it decodes for us."""
    error: str | None
    """Why it is out."""


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


class Member:
    """A backend among others.

    Args:
        name: Its address.
        backend: Itself.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self.error: BackendError | None = None
        """Why it is out; None while it is in."""
        self.epoch: int = 0
        """How often it was taken out: answers that it had before are lost."""
        self.open: int = 0
        """Requests that it decodes for us."""
        self.malformed: set[str] = set()
        """Answers that ended with a malformed reply since it last finished a request as it should."""

    @property
    def state(self) -> MemberState:
        """What it does at the moment."""
        error = None if self.error is None else str(self.error)
        return MemberState(self.name, self.error is None, self.open, error)

    @contextmanager
    def busy(self) -> Generator[None]:
        """Count a request."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def learn(self) -> Model:
        """Ask what it serves. Cancelling it leaves nothing behind.

        Raises:
            BackendError: It cannot be used, now or at all.
        """
        backend = self.backend
        info = await (backend.check() if isinstance(backend, Checkable) else backend.connect())
        return Model(info, tuple(await backend.encode(_SAMPLE)))

    async def relearn(self, first: Model, promised: ModelInfo) -> None:
        """Ask whether it serves again what it did, or what the others do.

        Raises:
            BackendError: It does not.
        """
        model = await self.learn()
        difference = first.difference(model)
        if model.info.context_length < promised.context_length:
            difference = f"context_length {promised.context_length} and {model.info.context_length}"
        if promised.honours_seeds and not model.info.honours_seeds:
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
