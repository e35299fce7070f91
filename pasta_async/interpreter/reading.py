"""One thread's token ids, read as they come: text, tags, and a thinking block in front of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from pasta_async.interpreter.outline import ItemParser, OutlineParser
from pasta_async.lang import TAG_TOKENS, ChunkParser, MainParser, Reading, ThreadParser
from pasta_async.tag_tokens import TagIds
from pasta_async.tokenizer import Tokenizer

THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"


class ThinkingFilter:
    """Separates a thinking block, which may only open an answer, from the answer behind it.

    Nothing in the block is read for tags, and its markers belong to neither part.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self.inside: bool = inside
        self.passed: bool = False
        """True once no block can come any more: the filter is to be left out."""
        self._held: str = ""  # may yet turn out to be a marker

    def split(self, text: str) -> tuple[str, str]:
        """Divide more text into the part inside the block and the part behind it.

        Text that may yet turn out to be a marker is held back and comes out with a later piece.
        """
        if self.passed:
            return "", text
        text = self._held + text
        self._held = ""
        if not self.inside:
            seen = text.lstrip()
            if not seen.startswith(THINK_OPEN):
                if THINK_OPEN.startswith(seen):
                    self._held = text
                    return "", ""
                self.passed = True
                return "", text
            self.inside = True
            text = seen.removeprefix(THINK_OPEN)
        thinking, marker, rest = text.partition(_THINK_CLOSE)
        if marker:
            self.passed = True
            return thinking, rest
        end = len(thinking) - overlap(thinking, _THINK_CLOSE)
        self._held = thinking[end:]
        return thinking[:end], rest

    def flush(self) -> tuple[str, str]:
        """Divide what was held back when the stream ended: it was no marker."""
        held, self._held = self._held, ""
        return (held, "") if self.inside else ("", held)


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`, without being all of it."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


class ReasoningRead(NamedTuple):
    """More text of a thinking block."""

    text: str


class Reader:
    """Reads what one thread writes, token by token.

    Without `tags` nothing is read as a tag. Only the main thread may have a thinking block; `thinking` is
    True if it begins inside one. `make_parser` makes the parser that reads the text; None: that of the tags.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tags: TagIds | None,
        *,
        main: bool,
        thinking: bool = False,
        make_parser: Callable[[], ThreadParser] | None = None,
    ) -> None:
        self._arguments = (tokenizer, tags, main, thinking, make_parser)
        self._tags = dict(zip(tags or (), TAG_TOKENS, strict=False))
        self._detokenizer = tokenizer.detokenizer()
        self._thinking = ThinkingFilter(inside=thinking) if main else None
        self.parser: ThreadParser = (make_parser or (MainParser if main else ChunkParser))()
        self.ids: list[int] = []
        """Ids that were read: all but end-of-text."""
        self.reasoning: list[str] = []
        """Text of the thinking block, in pieces."""
        self._joins: list[int] = []  # of an outline: numbers of ids in front of which a list was over

    def read(self, token: int) -> Sequence[Reading | ReasoningRead]:
        """Read one more token; the text of an unfinished character comes with a later one."""
        self.ids.append(token)
        tag = self._tags.get(token)
        if tag is None:
            text = self._detokenizer.add(token)
            return self._read_text(text) if text else ()
        readings = self._read_text(self._detokenizer.flush())
        thinking = self._thinking
        if thinking and thinking.inside:  # the model only thinks of a tag
            return [*readings, *self._read_text(tag)]
        if thinking:  # a tag begins no block: what was held back is text
            self._thinking = None
            readings += self.parser.feed_text(thinking.flush()[1])
        return [*readings, *self.parser.feed_tag(tag)]

    def close(self, *, cut: bool = False) -> list[Reading | ReasoningRead]:
        """End the thread: what was held back comes out, but half a tag if it was broken off (`cut`)."""
        readings = self._read_text(self._detokenizer.flush())
        if self._thinking:
            readings += self._divide(*self._thinking.flush())
        return [*readings, *self.parser.close(cut=cut)]

    def end_list(self, tokens: int) -> None:
        """End an outline's list: what followed the first ids was no further head, and is forgotten."""
        del self.ids[tokens:]
        self._detokenizer.flush()
        self._joins.append(tokens)
        cast("OutlineParser", self.parser).join()

    def spill(self) -> Sequence[Reading]:
        """Take for text what an outline's parser holds back: the answer ends there."""
        parser = self.parser
        return parser.spill() if isinstance(parser, OutlineParser | ItemParser) else ()

    def first(self, tokens: int) -> Reader:
        """A closed reader of the first `tokens` ids alone. Half a tag at their end is left out."""
        tokenizer, tags, main, thinking, make_parser = self._arguments
        reader = Reader(tokenizer, tags, main=main, thinking=thinking, make_parser=make_parser)
        for number, token in enumerate(self.ids[:tokens]):
            if number in self._joins:
                reader.end_list(number)
            reader.read(token)
        reader.spill()
        reader.close(cut=True)
        return reader

    @property
    def text_tokens(self) -> int:
        """Number of tokens of text or thinking: no tags, and nothing inside a promise's quotes."""
        count = 0
        in_promise = False
        for token in self.ids:
            tag = self._tags.get(token)
            if tag is not None:
                in_promise = tag in TAG_TOKENS[:2]
            elif not in_promise:
                count += 1
        return count

    def _read_text(self, text: str) -> list[Reading | ReasoningRead]:
        thinking = self._thinking
        if not thinking:
            return [*self.parser.feed_text(text)]
        parts = thinking.split(text)
        if thinking.passed:
            self._thinking = None
        return self._divide(*parts)

    def _divide(self, reasoning: str, text: str) -> list[Reading | ReasoningRead]:
        readings: list[Reading | ReasoningRead] = []
        if reasoning:
            self.reasoning.append(reasoning)
            readings.append(ReasoningRead(reasoning))
        return [*readings, *self.parser.feed_text(text)]
