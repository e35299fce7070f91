"""One thread's token ids, read as they come: text, tags, and a thinking block in front of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

from pasta_async.interpreter.outline import ItemParser, OutlineParser
from pasta_async.lang import (
    PROMISE_CLOSE,
    PROMISE_OPEN,
    PROMISE_TOKENS,
    TAG_TOKENS,
    ChunkParser,
    MainParser,
    Reading,
    ThreadParser,
)
from pasta_async.tag_tokens import TagIds
from pasta_async.tokenizer import Detokenizer, Tokenizer

THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"


class ThinkingFilter:
    """Separates a thinking block at the beginning of an answer from the answer behind it.

    No tags are read in the block, and its markers belong to neither part.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self.inside: bool = inside
        self.passed: bool = False
        """True once no block can come any more: further text need not pass the filter."""
        self._held: str = ""  # text that may yet turn out to be a marker

    def split(self, text: str) -> tuple[str, str]:
        """Divide more text into the part inside the block and the part behind it.

        Text that may yet turn out to be a marker is held back and comes out with a later piece.
        """
        if self.passed:
            return "", text
        text = self._held + text
        self._held = ""
        if not self.inside:
            # The opening marker may only stand in front of the answer, behind white space.
            stripped = text.lstrip()
            if not stripped.startswith(THINK_OPEN):
                if THINK_OPEN.startswith(stripped):
                    self._held = text
                    return "", ""
                self.passed = True
                return "", text
            self.inside = True
            text = stripped.removeprefix(THINK_OPEN)
        # Inside: what may be the beginning of the closing marker is held back.
        thinking, marker, rest = text.partition(_THINK_CLOSE)
        if marker:
            self.passed = True
            return thinking, rest
        end = len(thinking) - overlap(thinking, _THINK_CLOSE)
        self._held = thinking[end:]
        return thinking[:end], rest

    def flush(self) -> tuple[str, str]:
        """Divide the text that is held back when the stream ends: it was no marker."""
        held = self._held
        self._held = ""
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
    """Reads the output of one thread, token by token.

    Without `tags` nothing is read as a tag. Only the main thread may have a thinking block; `thinking` is
    True if it begins inside one. `make_parser` makes the parser of the text; None: a parser of tags.
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
        self._copy = partial(Reader, tokenizer, tags, main=main, thinking=thinking, make_parser=make_parser)
        self._tags = dict(zip(tags or (), TAG_TOKENS, strict=False))
        self._detokenizer = Detokenizer(tokenizer)
        self._thinking = ThinkingFilter(inside=thinking) if main else None
        self.parser: ThreadParser = (make_parser or (MainParser if main else ChunkParser))()
        self.ids: list[int] = []
        """Ids that were read: all but end-of-text."""
        self.reasoning: list[str] = []
        """Text of the thinking block, in pieces."""
        self._joins: list[int] = []  # in an outline: indices into `ids` at which a list ended

    def read(self, token: int) -> Sequence[Reading | ReasoningRead]:
        """Read one more token; the text of an unfinished character comes with a later one."""
        self.ids.append(token)
        tag = self._tags.get(token)
        if tag is None:
            text = self._detokenizer.add(token)
            return self._read_text(text) if text else ()
        readings = self._read_text(self._detokenizer.flush())
        thinking = self._thinking
        if thinking and thinking.inside:  # a tag in a thinking block is text of the block
            return [*readings, *self._read_text(tag)]
        if thinking:  # the answer begins with a tag, so no block comes: held text belongs to the answer
            self._thinking = None
            readings += self.parser.feed_text(thinking.flush()[1])
        return [*readings, *self.parser.feed_tag(tag)]

    def close(self, *, cut: bool = False) -> list[Reading | ReasoningRead]:
        """End the thread: held text comes out, except for an unfinished tag if the thread was `cut`."""
        readings = self._read_text(self._detokenizer.flush())
        if self._thinking:
            readings += self._divide(*self._thinking.flush())
        return [*readings, *self.parser.close(cut=cut)]

    def end_list(self, tokens: int) -> None:
        """End an outline's list: ids behind the first `tokens` ones were no further head, and are dropped."""
        del self.ids[tokens:]
        self._detokenizer.flush()
        self._joins.append(tokens)
        cast("OutlineParser", self.parser).join()

    def spill(self) -> Sequence[Reading]:
        """Read the text that an outline's parser holds back, because the answer ends there."""
        parser = self.parser
        return parser.spill() if isinstance(parser, OutlineParser | ItemParser) else ()

    def prefix(self, tokens: int) -> Reader:
        """A reader of the first `tokens` ids alone, which may go on behind them."""
        reader = self._copy()
        for index, token in enumerate(self.ids[:tokens]):
            if index in self._joins:
                reader.end_list(index)
            reader.read(token)
        if self._tags:  # a tag came next, so an unfinished character was given up
            reader._read_text(reader._detokenizer.flush())
        return reader

    @property
    def text_tokens(self) -> int:
        """Number of tokens of text or thinking: no tags, and nothing inside a promise's quotes."""
        count = 0
        quoted = 0  # of these, behind the beginning of a promise: no text once its end has come
        in_promise = False
        for token in self.ids:
            tag = self._tags.get(token)
            if tag is None:
                count += 1
                quoted += in_promise
            elif tag == PROMISE_TOKENS:
                continue
            else:
                if tag == PROMISE_CLOSE:
                    count -= quoted
                in_promise = tag == PROMISE_OPEN
                quoted = 0
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
