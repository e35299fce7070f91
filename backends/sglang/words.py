"""Where text becomes ids and ids become text: through the server, or by the model's own tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pasta_async.backends.sglang.encoding import Encoder
from pasta_async.backends.sglang.events import PieceReader
from pasta_async.backends.sglang.handshake import end_ids
from pasta_async.backends.sglang.server_tokenizer import ServerTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.backends.sglang.events import Increment
    from pasta_async.backends.sglang.transport import Server
    from pasta_async.protocol import Message, Piece, TagIds

__all__ = ["Reader", "ServerWords", "Words"]


class Reader(Protocol):
    """Cuts what a request adds into pieces."""

    async def read(self, new: Increment) -> list[Piece]:
        """The pieces of an increment."""
        ...


class Words(Protocol):
    """The text side of a model."""

    async def learn(self) -> tuple[TagIds | None, tuple[int, ...]]:
        """Ids of the tags, if the model has them, and of end-of-text. To be called first."""
        ...

    async def encode(self, text: str) -> list[int]:
        """Ids of text as data."""
        ...

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Ids of messages by the chat template; what stands in them is data."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        ...

    def reader(self, stop_ids: Sequence[int]) -> Reader:
        """A reader for one request, which asked to stop at these ids."""
        ...


class ServerWords:
    """Everything through the server, which knows its tokenizer and its chat template."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tokenizer = ServerTokenizer(server)
        self._encoder = Encoder(self._tokenizer)
        self._tags: TagIds | None = None
        self._alone: dict[int, str] = {}

    async def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing in it is a tag."""
        return await self._encoder.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Ids of messages by the chat template; what stands in them is data."""
        return await self._encoder.encode_chat(messages, template_kwargs)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        return await self._encoder.detokenize(ids)

    async def learn(self) -> tuple[TagIds | None, tuple[int, ...]]:
        """Ids of the tags, if the model has them, and of end-of-text. To be called first."""
        self._tags = await self._encoder.find_tags()
        return self._tags, await end_ids(self._server, self._tokenizer)

    def reader(self, stop_ids: Sequence[int]) -> Reader:
        """A reader for one request, which asked to stop at these ids."""
        return PieceReader(self._tags, stop_ids, self._detokenize)

    async def _detokenize(self, ids: list[list[int]]) -> list[str]:
        """Texts of lists of ids; that of a lone id, end-of-text in general, is asked for once."""
        [first, *rest] = ids
        if rest or len(first) != 1:
            return await self._tokenizer.detokenize(ids)
        if first[0] not in self._alone:
            [self._alone[first[0]]] = await self._tokenizer.detokenize(ids)
        return [self._alone[first[0]]]
