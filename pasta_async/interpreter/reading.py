"""How one thread's tokens are read, and recorded for the contexts of later requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from pasta_async.lang import PROMISE_OPEN, PROMISE_TOKENS, Parser, Reading
from pasta_async.tag_tokens import TagIds

Part = tuple[int, ...] | str
"""Part of a context: recorded ids, or a text that is to be encoded."""

THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"


class ThinkingFilter:
    """Parts what stands in a thinking block, which may only open an answer, from the answer behind it.

    Nothing in the block is read for tags, and its markers belong to neither part.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self.inside: bool = inside
        self._held: str = ""  # may yet turn out to be a marker
        self.passed: bool = False
        """Whether no block can come any more: the filter is to be left out."""

    def split(self, text: str) -> tuple[str, str]:
        """The part of the text that is thinking, and the part behind it.

        Text that may yet turn out to be a marker is held back and comes out with a later piece.
        """
        if self.passed:
            return "", text
        text, self._held = self._held + text, ""
        if not self.inside:
            seen = text.lstrip()
            if not seen.startswith(THINK_OPEN):
                if THINK_OPEN.startswith(seen):
                    self._held, text = text, ""
                else:
                    self.passed = True
                return "", text
            self.inside, text = True, seen.removeprefix(THINK_OPEN)
        thinking, marker, rest = text.partition(_THINK_CLOSE)
        if marker:
            self.passed = True
        else:
            end = len(thinking) - overlap(thinking, _THINK_CLOSE)
            thinking, self._held = thinking[:end], thinking[end:]
        return thinking, rest

    def flush(self) -> tuple[str, str]:
        """What was held back when the stream ended: it was no marker."""
        held, self._held = self._held, ""
        return (held, "") if self.inside else ("", held)


def overlap(text: str, other: str) -> int:
    """Length of the longest end of `text` that begins `other`, without being all of it."""
    for size in range(min(len(text), len(other) - 1), 0, -1):
        if text.endswith(other[:size]):
            return size
    return 0


class ReasoningRead(NamedTuple):
    """More of a thinking block."""

    text: str


_Unit = tuple[int, str, bool]
"""What was read at once: the thread's tokens up to its end, its text, whether it is a tag.

There is one for every token, and the garbage collector passes over plain tuples of such values.
"""


class Reader:
    """Reads what one thread writes, and remembers where its tokens end in it.

    Only the main thread's answer may have a thinking block, and `thinking` is whether it begins inside one.
    """

    def __init__(self, tags: TagIds | None, *, main: bool, thinking: bool = False) -> None:
        self._arguments = (tags, main, thinking)
        self._tags: Collection[int] = tags or ()
        self.parser: Parser = Parser("main" if main else "chunk")
        self._parse = self.parser.feed_text
        self._thinking = ThinkingFilter(inside=thinking) if main else None
        self._units: list[_Unit] = []
        self._tokens = 0  # read, end-of-text not counted
        self.reasoning: list[str] = []
        """What stood in a thinking block."""

    def read(self, ids: tuple[int, ...], text: str) -> Sequence[Reading | ReasoningRead]:
        """Read newly decoded tokens; a tag id comes alone."""
        is_tag = len(ids) == 1 and ids[0] in self._tags
        return self._read((self._tokens + len(ids), text, is_tag))

    def close(self, *, cut: bool = False) -> list[Reading | ReasoningRead]:
        """The thread is over: what was held back comes out, but half a tag if it was broken off (`cut`)."""
        held = self._divide(*self._thinking.flush()) if self._thinking else []
        return [*held, *self.parser.close(cut=cut)]

    def first(self, tokens: int, rest: str = "") -> Reader:
        """A closed reader that has read only the first so many tokens. Half a tag at the end is left out.

        `rest` is the text of those of them that were read at once with tokens behind them.
        """
        tags, main, thinking = self._arguments
        again = Reader(tags, main=main, thinking=thinking)
        units = [unit for unit in self._units if unit[0] <= tokens]
        if rest:
            units.append((tokens, rest, False))
        for unit in units:
            again._read(unit)
        again.close(cut=True)
        return again

    @property
    def text_tokens(self) -> int:
        """Tokens of text or thinking."""
        count = before = 0
        in_promise = False  # what stands between its tag ids is no text
        for upto, text, is_tag in self._units:
            if is_tag:
                in_promise = text in (PROMISE_OPEN, PROMISE_TOKENS)
            elif not in_promise:
                count += upto - before
            before = upto
        return count

    def known(self, tokens: int) -> int:
        """The largest number of tokens, up to `tokens`, whose text is known to be complete."""
        return max((upto for upto, text, _ in self._units if text and upto <= tokens), default=0)

    def _read(self, unit: _Unit) -> Sequence[Reading | ReasoningRead]:
        self._units.append(unit)
        self._tokens, text, is_tag = unit
        thinking = self._thinking
        if not thinking:
            return self.parser.feed_tag(text) if is_tag else self._parse(text)
        if is_tag and not thinking.inside:  # a tag begins no block: what was held back is text
            self._thinking = None
            return [*self._parse(thinking.flush()[1]), *self.parser.feed_tag(text)]
        parts = thinking.split(text)
        if thinking.passed:
            self._thinking = None
        return self._divide(*parts)

    def _divide(self, reasoning: str, text: str) -> list[Reading | ReasoningRead]:
        if reasoning:
            self.reasoning.append(reasoning)
        thought = [ReasoningRead(reasoning)] if reasoning else []
        return [*thought, *self._parse(text)]


class RecordedTokens:
    """Token ids that a thread wrote since its context began; later contexts are made of them.

    A fork must be a token prefix of its parent, so nothing here is ever encoded anew.
    """

    def __init__(self) -> None:
        self.raw: list[int] = []
        """The ids as they were generated: what the thread itself has behind its context."""
        self._promises: list[tuple[int, int]] = []  # thread, ids up to the end of its promise's tag

    def mark(self, thread: int) -> None:
        """Note that the promise of `thread` ends with the id that was added last."""
        self._promises.append((thread, len(self.raw)))

    def before(self, thread: int) -> tuple[int, ...]:
        """Ids up to the end of the promise of `thread`."""
        return tuple(self.raw[: dict(self._promises)[thread]])

    def joined(self, chunks: Mapping[int, Sequence[Part]]) -> Iterator[Part]:
        """All ids, with the chunk of each promise right behind it."""
        start = 0
        for thread, end in self._promises:
            yield tuple(self.raw[start:end])
            yield from chunks[thread]
            start = end
        yield tuple(self.raw[start:])
