"""How one thread's tokens are read, and recorded for the contexts of later requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pasta_async.lang import PROMISE_OPEN, PROMISE_TOKENS, Parser, Reading
from pasta_async.tag_tokens import TagIds

Dialect = Literal["ids", "text", "plain"]
"""How tags are read: as the ids of a trained model, as text of a prompted one, or not at all (baseline)."""

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

    def __init__(self, dialect: Dialect, tags: TagIds | None, *, main: bool, thinking: bool = False) -> None:
        self._arguments = (dialect, tags, main, thinking)
        self._tags: Collection[int] = tags or ()
        self.parser: Parser = Parser("main" if main else "chunk")
        self._parse = self.parser.feed if dialect == "text" else self.parser.feed_text
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

    def first(self, tokens: int, rest: str = "", *, but: int = 0) -> Reader:
        """A closed reader that has read only the first so many tokens. Half a tag at the end is left out.

        `rest` is what those of them say that were read at once with tokens behind them; `but` so many
        characters at the end of the last unit are left out.
        """
        dialect, tags, main, thinking = self._arguments
        again = Reader(dialect, tags, main=main, thinking=thinking)
        units = [unit for unit in self._units if unit[0] <= tokens]
        if units and but:
            upto, text, is_tag = units[-1]
            units[-1] = (upto, text[:-but], is_tag)
        if rest:
            units.append((tokens, rest, False))
        for unit in units:
            again._read(unit)
        again.close(cut=True)
        return again

    @property
    def text_tokens(self) -> int:
        """Tokens of text or thinking; all of them for a prompted model, whose tags are text."""
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


@dataclass(slots=True)
class _Recorded:
    """What was read at once; ids whose text lags wait for it."""

    start: int = 0
    """How many ids were recorded before it."""
    end: int = 0
    """How many with it."""
    text: str = ""
    promises: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Those whose tag ends here: its thread, and the characters up to there."""
    split: bool = False
    """Whether a tag ends inside it, so that its text is encoded anew."""


class RecordedTokens:
    """What a thread wrote since its context began, as the token ids that later contexts are made of.

    A fork must be a token prefix of its parent, so contexts are made of the ids that were recorded. Where
    the tag of a prompted model ends inside a token, the context is cut before that token, and the token's
    text up to the tag's end, and behind it, is encoded anew; the shell does that through `Backend.encode`.
    """

    def __init__(self) -> None:
        self.raw: list[int] = []
        """The ids as they were generated: what the thread itself has behind its context."""
        self._units = [_Recorded()]  # those in which a tag ends, and what was added last

    @property
    def settled(self) -> int:
        """How many ids stand before what was added last, which may yet be cut."""
        return self._units[-1].start

    def add(self, ids: tuple[int, ...], text: str) -> None:
        """What was read as one unit; `mark` and `end` say where in it tags ended."""
        unit = self._units[-1]
        if unit.text:
            if unit.promises or unit.split:
                unit = _Recorded()
                self._units.append(unit)
            unit.start = len(self.raw)
        unit.text = text
        self.raw += ids
        unit.end = len(self.raw)

    def mark(self, thread: int, left: int) -> None:
        """A promise ends `left` characters before the end of what was added last."""
        unit = self._units[-1]
        unit.promises.append((thread, len(unit.text) - left))
        unit.split = unit.split or left > 0

    def end(self, left: int) -> None:
        """A tag ends all of it there; what comes behind was written without what has to come before."""
        if left:
            self._units[-1].text = self._units[-1].text[:-left]
            self._units[-1].split = True

    def before(self, thread: int) -> list[Part]:
        """What stands up to the promise of `thread`: the recorded ids, cut nowhere but there."""
        unit, end = next((unit, end) for unit in self._units for n, end in unit.promises if n == thread)
        if end == len(unit.text):
            return [tuple(self.raw[: unit.end])]
        return [tuple(self.raw[: unit.start]), unit.text[:end]]

    def joined(
        self, chunks: Mapping[int, list[Part]], *, last: int | None = None, grows: bool = False
    ) -> Iterator[Part]:
        """All of it, with the chunk of each promise right behind it (none for a promise not in `chunks`).

        `last` is the thread of the promise behind whose chunk to end; `grows` is whether more will be added,
        so that the unit that was added last may yet change.
        """
        done = 0
        for unit in self._units:
            yield tuple(self.raw[done : unit.start])
            if grows and unit is self._units[-1]:
                return
            at, done = 0, unit.end
            if not unit.split:
                yield tuple(self.raw[unit.start : unit.end])
            for thread, end in unit.promises:
                if unit.split:
                    yield unit.text[at:end]
                yield from chunks.get(thread, [])
                if thread == last:
                    return
                at = end
            if unit.split and at < len(unit.text):
                yield unit.text[at:]
