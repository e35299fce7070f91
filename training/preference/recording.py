"""What went through a backend for one answer: the contexts that were sent, the ids that came back.

Text is not enough to train on: a model can say the same text in other tokens than those it is encoded as, and
only the probability of what was sampled is the one that the objective is about.
"""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pasta_async.backends import WrappingBackend
from pasta_async.training.packing import Trie

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Generator, Iterable

    from pasta_async.protocol import Backend, DecodeRequest, Piece

__all__ = ["Exchange", "Recording", "trie_of"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and what came back as far as somebody took it."""

    thread: int
    context: tuple[int, ...]
    output: list[int] = field(default_factory=list[int])


class Recording(WrappingBackend):
    """A backend that records what passes through it.

        recording = Recording(backend)
        async with Client(recording) as client:
            with recording.recorded() as exchanges:
                await client.generate(prompt)

    Args:
        backend: Does the work.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._records: ContextVar[list[Exchange] | None] = ContextVar("exchanges", default=None)

    @contextmanager
    def recorded(self) -> Generator[list[Exchange]]:
        """Record the requests of this task and of those that it starts, in the order of their sending."""
        exchanges: list[Exchange] = []
        token = self._records.set(exchanges)
        try:
            yield exchanges
        finally:
            self._records.reset(token)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode, recording every id that is handed out.

        Closing the generator or cancelling its reader closes the inner backend's, which aborts the request.
        """
        exchange = Exchange(request.thread, request.ids)
        if (recorded := self._records.get()) is not None:
            recorded.append(exchange)
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                exchange.output.extend(piece.ids)
                yield piece


def trie_of(exchanges: Iterable[Exchange], discarded: Collection[int] = ()) -> Trie:
    """The contexts of an answer with what came back as targets, main first, then thread by thread.

    Whether main was asked once or anew behind every promise makes no difference.

    Args:
        exchanges: Of one answer.
        discarded: Threads whose output was thrown away.
    """
    trie = Trie()
    for exchange in sorted(exchanges, key=lambda exchange: exchange.thread):
        if exchange.output and exchange.thread not in discarded:
            trie.extend(trie.extend(-1, exchange.context), exchange.output, target=True)
    trie.targets = sorted(set(trie.targets))  # what was sampled again after a failure is there once
    return trie
