"""The base of backends that stand before another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from pasta_async.protocol import Backend, DecodeRequest, Message, ModelInfo, Piece

__all__ = ["WrappingBackend"]


class WrappingBackend:
    """A backend that leaves everything to another one; subclasses change or note a part of it.

    Each coroutine is cancelled, and fails, as the inner backend's.

    Args:
        inner: Does the work.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner: Backend = inner

    async def connect(self) -> ModelInfo:
        """As the inner backend."""
        return await self.inner.connect()

    async def encode(self, text: str) -> list[int]:
        """As the inner backend."""
        return await self.inner.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """As the inner backend."""
        return await self.inner.encode_chat(messages, template_kwargs)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """As the inner backend."""
        return await self.inner.detokenize(ids)

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """As the inner backend."""
        return self.inner.decode(request)

    async def aclose(self) -> None:
        """Close the inner backend."""
        await self.inner.aclose()
