"""A server's own tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pasta_async.errors import BackendProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.backends.sglang.transport import Server
    from pasta_async.protocol import Message

__all__ = ["ServerTokenizer"]


class ServerTokenizer:
    """`/tokenize` and `/detokenize` (a `pasta_async.backends.sglang.encoding.Tokenizer`)."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def tokenize(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Ids of texts."""
        if not texts:
            return []
        body = {"prompt": list(texts), "add_special_tokens": special}
        return cast("list[list[int]]", await self._field("/tokenize", body, "tokens"))

    async def tokenize_chat(
        self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Ids of messages by the chat template."""
        body = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "chat_template_kwargs": dict(template_kwargs) or None,
        }
        return cast("list[int]", await self._field("/tokenize", body, "tokens"))

    async def detokenize(self, ids: Sequence[Sequence[int]], *, skip_special: bool = False) -> list[str]:
        """Texts of lists of ids."""
        texts = [""] * len(ids)
        filled = [at for at, one in enumerate(ids) if one]  # an empty first list is read as no list at all
        if filled:
            body = {"tokens": [list(ids[at]) for at in filled], "skip_special_tokens": skip_special}
            for at, text in zip(filled, await self._field("/detokenize", body, "text"), strict=True):
                texts[at] = str(text)
        return texts

    async def _field(self, path: str, body: Mapping[str, Any], name: str) -> list[Any]:
        answer = await self._server.post(path, body)
        try:
            value: Any = answer[name]
        except (KeyError, TypeError) as error:
            raise BackendProtocolError(f"{self._server.url}{path} answered {answer!r:.200}") from error
        if not isinstance(value, list):
            raise BackendProtocolError(f"{self._server.url}{path} answered {answer!r:.200}")
        return cast("list[Any]", value)
