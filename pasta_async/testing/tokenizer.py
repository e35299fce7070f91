"""A tokenizer that needs nothing (words, numbers and signs, each an id of its own), and a chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Protocol

from pasta_async.errors import InvalidRequestError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import Message
from pasta_async.tag_tokens import TagIds

_WORD = re.compile(r" ?[^\W\d_]{1,12}| ?\d{1,3}| ?[^\w\s]|_|\s")

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MARKERS = (*(f"<|{role}|>" for role in _ROLES), "<|end|>", "<|answer|>", "<|plain answer|>")


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


class Chat:
    """The scripted model's chat template: a marker id before and behind each message.

    The markers' ids follow the tokenizer's own.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._markers = dict(enumerate(_MARKERS, tokenizer.vocab_size))
        self._ids = {marker: token for token, marker in self._markers.items()}
        self.vocab_size: int = tokenizer.vocab_size + len(_MARKERS)

    def encode(self, messages: Sequence[Message], *, plain: bool) -> list[int]:
        """Encode messages up to where the answer begins. Fields other than role and content are left out."""
        ids: list[int] = []
        for n, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if role not in _ROLES or not isinstance(content, str):
                raise InvalidRequestError(f"message {n}: needs a text, and a role among {', '.join(_ROLES)}")
            ids += (self._ids[f"<|{role}|>"], *self._tokenizer.encode(content), self._ids["<|end|>"])
        return [*ids, self._ids["<|plain answer|>" if plain else "<|answer|>"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, markers included."""
        parts: list[str] = []
        for is_marker, group in groupby(ids, self._markers.__contains__):
            run = [*group]
            parts += [self._markers[i] for i in run] if is_marker else [self._tokenizer.decode(run)]
        return "".join(parts)

    def question(self, ids: Sequence[int]) -> tuple[str, bool]:
        """The last user message of a context, and whether a plain answer follows.

        A context that is no chat is a question as a whole.
        """
        found = [(n, self._markers[token]) for n, token in enumerate(ids) if token in self._markers]
        plain = bool(found) and found[-1][1] == "<|plain answer|>"
        users = [(start, end) for (start, marker), (end, _) in pairwise(found) if marker == "<|user|>"]
        if not users:
            return self._tokenizer.decode([token for token in ids if token not in self._markers]), plain
        start, end = users[-1]
        return self._tokenizer.decode(ids[start + 1 : end]), plain
