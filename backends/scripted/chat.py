"""The scripted model's chat template: a marker id before and behind each message."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.backends.scripted.words import Tokenizer
    from pasta_async.protocol import Message

__all__ = ["Chat"]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MARKERS = (*(f"<|{role}|>" for role in _ROLES), "<|end|>", "<|answer|>", "<|plain answer|>")


class Chat:
    """Encodes messages; the markers' ids follow the tokenizer's own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._first = tokenizer.vocab_size
        self.vocab_size: int = self._first + len(_MARKERS)

    def _id(self, marker: str) -> int:
        return self._first + _MARKERS.index(marker)

    def encode(self, messages: Sequence[Message], *, plain: bool) -> list[int]:
        """Encode messages up to where the answer begins."""
        ids: list[int] = []
        for n, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if role not in _ROLES or not isinstance(content, str):
                raise InvalidRequestError(f"message {n}: needs a text, and a role among {', '.join(_ROLES)}")
            ids += (self._id(f"<|{role}|>"), *self._tokenizer.encode(content), self._id("<|end|>"))
        return [*ids, self._id("<|plain answer|>" if plain else "<|answer|>")]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, markers included."""
        parts: list[str] = []
        for is_marker, group in groupby(ids, lambda token: token >= self._first):
            run = list(group)
            parts += (
                [_MARKERS[token - self._first] for token in run]
                if is_marker
                else [self._tokenizer.decode(run)]
            )
        return "".join(parts)

    def question(self, ids: Sequence[int]) -> tuple[str, bool]:
        """The last user message of a context, and whether a plain answer follows.

        A context that is no chat is a question as a whole.
        """
        markers = [n for n, token in enumerate(ids) if token >= self._first]
        plain = bool(markers) and ids[markers[-1]] == self._id("<|plain answer|>")
        users = [n for n in markers if ids[n] == self._id("<|user|>")]
        if not users:
            return self.decode([token for token in ids if token < self._first]), plain
        end = next(n for n in markers if n > users[-1])
        return self._tokenizer.decode(ids[users[-1] + 1 : end]), plain
