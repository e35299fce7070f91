"""The six tag tokens of a model that annotates: their ids, and the rules for which may come next.

A model that was trained on well-formed answers still writes a wrong tag now and then: a topic that it never
closes or has used before, a `<sync/>` with nothing to wait for, the next promise where a chunk has to end. A
backend that can change the logits before each choice excludes those tags, and ends a topic where punctuation
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MAX_TOPIC = 12  # tokens, which 99% of pasta-smol's topics have at most
_MAX_ESTIMATE = 4  # tokens: digits
_DELIMITERS = frozenset(b'\n:;{}<>*"')
"""Bytes that end a topic: a model that did not end it itself writes the whole item behind them."""


class TagIds(NamedTuple):
    """Ids of the six tag tokens, in the order of `pasta_async.lang.TAG_TOKENS`."""

    promise: int
    tokens: int
    end: int
    open_async: int
    close_async: int
    sync: int

    @property
    def ends_of_chunk(self) -> tuple[int, ...]:
        """Ids at which a chunk ends: `</async>`; or a promise or sync written by a thread that omitted it."""
        return self.close_async, self.promise, self.sync

    @property
    def wrong_in_chunk(self) -> tuple[int, ...]:
        """Ids that are wrong anywhere in a chunk. Not a promise or a sync: they end the chunk."""
        return self.tokens, self.end, self.open_async


class TagRule(NamedTuple):
    """Ids that may not be chosen next."""

    excluded: tuple[int, ...] | None
    """Ids that are excluded; None: every id except `instead`."""
    instead: int | None = None
    """The id that gets the highest logit among the excluded ids: it closes the tag or chunk correctly."""


@dataclass(frozen=True, slots=True)
class TagGrammar:
    """Rules for the tags of one request, beside `DecodeRequest.banned_ids`."""

    tags: TagIds
    end_ids: tuple[int, ...]
    """End-of-text ids."""
    token_bytes: Callable[[int], bytes]
    """The UTF-8 of a token."""
    chunk: bool
    """True for a chunk's thread, False for main."""
    topics: frozenset[str] = frozenset()
    """Topics of main's promises that are not joined yet (`plain_topic`). None may come again before that."""


class TagState:
    """Follows one request, token by token, from the end of its context on, which may be inside a tag."""

    def __init__(self, grammar: TagGrammar, context: Sequence[int]) -> None:
        tags = grammar.tags
        others = (tags.promise, tags.sync, *grammar.end_ids)
        self._tags = tags
        self._token_bytes = grammar.token_bytes
        self._chunk = TagRule(others, tags.close_async) if grammar.chunk else None
        self._outside = TagRule((tags.tokens, tags.end))
        self._idle = TagRule((tags.tokens, tags.end, tags.sync))
        self._empty = TagRule((*others, tags.tokens, tags.end))
        self._topic = TagRule(others, tags.end)
        self._estimate = TagRule((*others, tags.tokens), tags.end)
        self._over = TagRule(None, tags.end)
        self._inside: int | None = None  # tokens of the topic, or of the estimate, so far; None: outside
        self._in_estimate = False
        self._written = bytearray()  # the topic so far
        self._topics: set[str] = set()  # topics of the promises that are not joined yet
        # The context may end inside a promise, whose tokens are followed here. The topics of whole promises
        # that are not joined yet are in the grammar.
        for token in context[-_MAX_TOPIC - _MAX_ESTIMATE - 2 :]:
            self._follow(token)
        self._topics = {*grammar.topics}

    @property
    def rule(self) -> TagRule:
        """The rule for the next token."""
        if self._chunk:
            return self._chunk
        if self._inside is None:
            return self._outside if self._topics else self._idle
        if self._inside >= (_MAX_ESTIMATE if self._in_estimate else _MAX_TOPIC):
            return self._over
        if self._inside == 0 or self._is_repeated:
            return self._empty
        return self._estimate if self._in_estimate else self._topic

    @property
    def _topic_so_far(self) -> str:
        return plain_topic(self._written.decode("utf-8", "replace"))

    @property
    def _is_repeated(self) -> bool:
        """True inside a topic that would be the topic of an earlier promise if it ended here."""
        return not self._in_estimate and self._topic_so_far in self._topics

    def add(self, token: int) -> int:
        """Follow a chosen token; returns it, or the tag that takes its place."""
        tags = self._tags
        # A delimiter inside a topic: the topic ends here, unless it has to become another one.
        if self._inside and not self._in_estimate and token not in tags and not self._is_repeated:
            if not _DELIMITERS.isdisjoint(self._token_bytes(token)):
                token = tags.end
        self._follow(token)
        return token

    def _follow(self, token: int) -> None:
        tags = self._tags
        if token == tags.promise:
            self._inside = 0
            self._in_estimate = False
            self._written.clear()
        elif token == tags.tokens:
            self._inside = 0
            self._in_estimate = True
        elif token == tags.end:
            self._inside = None
            self._topics.add(self._topic_so_far)
        elif token == tags.sync:
            self._topics.clear()
        elif self._inside is not None:
            self._inside += 1
            if not self._in_estimate:
                self._written += self._token_bytes(token)


def plain_topic(topic: str) -> str:
    """A topic in the form in which topics are compared: in small letters, with single spaces."""
    return " ".join(topic.lower().split())
