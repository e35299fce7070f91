"""A tokenizer that needs nothing: words, numbers and signs, each an id of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import TagIds

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Tokenizer", "WordTokenizer"]

_WORD = re.compile(r" ?[^\W\d_]{1,12}| ?\d{1,3}| ?[^\w\s]|_|\s")


class Tokenizer(Protocol):
    """What a `ScriptedBackend` needs of a tokenizer; bring your own to test with it."""

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        ...

    @property
    def end_id(self) -> int:
        """The end-of-text id; its text is empty."""
        ...

    @property
    def tags(self) -> TagIds | None:
        """Ids of the tag tokens; None for a model that writes its tags as plain text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Encode text as data: no tag id and no end id, whatever stands in it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; a tag id gives its written form. `decode(encode(text)) == text`."""
        ...


class WordTokenizer:
    """Splits text into words (with the space before them), up to three digits, and single signs.

    Ids are given out as words turn up, so one order of calls always gives the same ids, and one instance must
    serve a whole test. Any text comes back as it was.
    """

    vocab_size = 1 << 24
    end_id = 0

    def __init__(self, *, tags: bool = True) -> None:
        """With or without the six tag tokens: a trained model's vocabulary, or anybody else's."""
        self.tags: TagIds | None = TagIds(1, 2, 3, 4, 5, 6) if tags else None
        self._words: list[str] = ["", *TAG_TOKENS]
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Encode text as data; what looks like a tag is signs and words."""
        ids, words = self._ids, self._words
        result: list[int] = []
        for word in _WORD.findall(text):
            if (token := ids.get(word)) is None:
                token = ids[word] = len(words)
                words.append(word)
            result.append(token)
        return result

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, tags in written form."""
        words = self._words
        return "".join([words[token] for token in ids])
