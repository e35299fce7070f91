"""A backend that notes what another one is asked."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from pasta_async.backends import WrappingBackend

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pasta_async.protocol import Backend, DecodeRequest, Piece


class Recorder(WrappingBackend):
    """Attributes: `requests` in order, and ids that `written` has of each."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.requests: list[DecodeRequest] = []
        self.written: list[list[int]] = []

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        written: list[int] = []
        self.written.append(written)
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                written += piece.ids
                yield piece
