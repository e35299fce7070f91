"""What a scripted model writes: documents and raw scripts, turned into tokens passage by passage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from pasta_async.lang.document import ASYNC_CLOSE, TAG_TOKENS, Chunk, Document, Node, Sync, Text
from pasta_async.lang.parser import parse
from pasta_async.lang.views import Segment, views
from pasta_async.protocol import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from pasta_async.protocol import DecodeRequest, FinishReason
    from pasta_async.testing.tokenizer import Tokenizer

__all__ = [
    "AnswerState",
    "Passage",
    "Script",
    "ScriptLike",
    "ScriptSource",
    "extent",
    "pieces",
    "read_script",
]


@dataclass(frozen=True, slots=True)
class Script:
    """What a model writes, character by character, for models that write tags as plain text.

    Nothing in it is checked: this is the place for chunks written inline, code fences, odd quotes.
    """

    main: Sequence[str]
    """The main thread's text, one item for each passage: a new one begins behind a `<sync/>` that joined."""
    chunks: Mapping[int, str] = field(default_factory=dict[int, str])
    """What thread k (from 1) writes behind its `<async>`, `</async>` included if it writes one."""

    @classmethod
    def of(cls, document: Document) -> Script:
        """The script of a model that writes this document."""
        main = [""]
        for node in document.nodes:
            main[-1] += _bare(node)
            if isinstance(node, Sync):
                main.append("")
        chunks = {k: _body(p.chunk) for k, p in enumerate(document.promises, 1) if p.chunk is not None}
        return cls(main, chunks)


ScriptLike = str | Document | Script
"""A document in written form, a document, or a raw script."""

ScriptSource = ScriptLike | Mapping[str, ScriptLike] | Callable[[str], ScriptLike]
"""One script for everything, or one for each prompt (the last user message's text)."""


def _bare(node: Node) -> str:
    return node.format() if isinstance(node, Text) else node.source


def _body(chunk: Chunk) -> str:
    text = "".join(node.format() for node in chunk.nodes)
    return text + ASYNC_CLOSE if chunk.closed_by == "writer" else text


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens to be played, each with the text that it completes. The last one is end-of-text."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]

    def piece(self, start: int, end: int) -> Piece:
        """Some of its tokens."""
        return Piece(self.ids[start:end], "".join(self.texts[start:end]))

    def unfinished(self, count: int, tokenizer: Tokenizer) -> str:
        """The text of a character that ending after so many tokens cuts in two."""
        since = count
        while since and not self.texts[since - 1]:
            since -= 1
        return tokenizer.decode(self.ids[since:count])

    def after(self, written: tuple[int, ...], tokenizer: Tokenizer) -> Passage | None:
        """What is left when so much of it stands in the context already; None if that is something else."""
        if self.ids[: len(written)] == written:
            at = min(len(written), len(self.ids) - 1)  # the end can always be written again
            return Passage(self.ids[at:], self.texts[at:])
        return self._after_text(tokenizer.decode(written), tokenizer)

    def _after_text(self, written: str, tokenizer: Tokenizer) -> Passage | None:
        """The same by text: a prompted model's tokens may have been cut and encoded again."""
        done = 0
        for n, text in enumerate(self.texts):
            if not written.startswith(text, done):
                if not text.startswith(written[done:]):
                    return None
                rest = _spell(Segment(text[len(written) - done :]), tokenizer)
                return Passage((*rest.ids, *self.ids[n + 1 :]), (*rest.texts, *self.texts[n + 1 :]))
            done += len(text)
            if done == len(written):
                return Passage(self.ids[n + 1 :], self.texts[n + 1 :])
        return None

    def spliced(self, at: int, text: str, tokenizer: Tokenizer) -> Passage:
        """The same with a text written in, tags as tags where the tokenizer has them."""
        new = _passage(_cut(text), tokenizer)
        ids = (*self.ids[:at], *new.ids[:-1], *self.ids[at:])
        return Passage(ids, (*self.texts[:at], *new.texts[:-1], *self.texts[at:]))


def _cut(text: str) -> list[Segment]:
    """Cut a text at the tag tokens in it."""
    for tag in TAG_TOKENS:
        if tag in text:
            before, _, behind = text.partition(tag)
            return [*_cut(before), Segment(tag, is_tag=True), *_cut(behind)]
    return [Segment(text)] if text else []


def _passage(segments: Sequence[Segment], tokenizer: Tokenizer) -> Passage:
    parts = [_spell(segment, tokenizer) for segment in segments]
    ids = [token for part in parts for token in part.ids]
    texts = [text for part in parts for text in part.texts]
    return Passage((*ids, tokenizer.end_id), (*texts, ""))


def _spell(segment: Segment, tokenizer: Tokenizer) -> Passage:
    """Tokens of a segment, with the text that each completes: all in all, the segment's own."""
    if segment.is_tag and tokenizer.tags is not None:
        return Passage((tokenizer.tags[TAG_TOKENS.index(segment.text)],), (segment.text,))
    ids = tokenizer.encode(segment.text)
    texts = [tokenizer.decode([token]) for token in ids]
    if "".join(texts) != segment.text:
        texts = _lagging(ids, segment.text, tokenizer)
    return Passage(tuple(ids), tuple(texts))


def _lagging(ids: list[int], text: str, tokenizer: Tokenizer) -> list[str]:
    """The same where a token's text depends on its neighbours, or is less than a character."""
    done = 0
    texts: list[str] = []
    for end in range(1, len(ids) + 1):
        known = tokenizer.decode(ids[:end])
        upto = len(text) if end == len(ids) else len(known) if text.startswith(known) else done
        texts.append(text[done:upto])
        done = max(done, upto)
    return texts


Passages = tuple[list[Passage], dict[int, Passage]]
"""What main writes, passage by passage, and what each thread writes. Shared by answers: never changed."""


def read_script(script: ScriptLike, tokenizer: Tokenizer, *, plain: bool) -> Passages:
    """A script in tokens; a plain one is its visible text, in one passage."""
    document = parse(script) if isinstance(script, str) else script
    if isinstance(document, Document) and plain:
        return [_passage([Segment(document.text)], tokenizer)], {}
    if isinstance(document, Document) and tokenizer.tags is not None:
        targets = [(view.thread, _passage(view.target, tokenizer)) for view in views(document)]
        main = [passage for thread, passage in targets if not thread]
        return main, {thread: passage for thread, passage in targets if thread}
    raw = Script.of(document) if isinstance(document, Document) else document
    main = [_passage([Segment(text)], tokenizer) for text in raw.main]
    return main, {k: _passage([Segment(text)], tokenizer) for k, text in raw.chunks.items()}


class AnswerState:
    """The state of one answer's playing: which request gets what."""

    def __init__(self, passages: Passages, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._main, self._chunks = passages
        self._nothing = _passage([], tokenizer)
        self._starts: list[tuple[int, ...]] = []  # contexts of main's passages
        self._bases: dict[int, tuple[int, ...]] = {}  # where each thread's current passage began

    def find(self, thread: int, ids: tuple[int, ...]) -> Passage:
        """What a request is answered with.

        Main goes on in its passage if its context is that passage's with a part of it written; with any
        other context (chunks were joined) it goes on to the next one.
        """
        if thread == 0:
            return self._find_main(ids)
        passage = self._chunks.get(thread, self._nothing)
        base = self._bases.get(thread) or self._behind_open(ids, passage)
        left = passage.after(ids[len(base) :], self._tokenizer) if ids[: len(base)] == base else None
        if left is None:
            base, left = ids, passage
        if self._tokenizer.tags is None:  # where a chunk began cannot be told from its context
            self._bases[thread] = base
        return left

    def _behind_open(self, ids: tuple[int, ...], passage: Passage) -> tuple[int, ...]:
        """The context up to the `<async>` behind which only tokens of this chunk stand."""
        tags = self._tokenizer.tags
        for at in range(max(0, len(ids) - len(passage.ids)), len(ids)):
            if tags and ids[at] == tags.open_async and passage.ids[: len(ids) - at - 1] == ids[at + 1 :]:
                return ids[: at + 1]
        return ids

    def _find_main(self, ids: tuple[int, ...]) -> Passage:
        if ids in self._starts:  # the same again
            del self._starts[self._starts.index(ids) + 1 :]
            return self._current()
        if self._starts and ids[: len(self._starts[-1])] == self._starts[-1]:
            left = self._current().after(ids[len(self._starts[-1]) :], self._tokenizer)
            if left is not None and (len(left.ids) > 1 or len(self._starts) >= len(self._main)):
                return left
        self._starts.append(ids)
        return self._current()

    def _current(self) -> Passage:
        at = len(self._starts) - 1
        return self._main[at] if at < len(self._main) else self._nothing

    def rewrite(self, thread: int, ids: tuple[int, ...], passage: Passage) -> None:
        """From these ids on, the thread's passage is another one (something was written into it)."""
        if thread:
            self._bases[thread] = ids
            self._chunks = {**self._chunks, thread: passage}
        else:
            at = len(self._starts) - 1
            self._starts[at] = ids
            self._main = [*self._main[:at], passage, *self._main[at + 1 :]]


def extent(passage: Passage, request: DecodeRequest, end_id: int, limit: int) -> tuple[int, FinishReason]:
    """How many tokens of a passage a request gets, and why it ends there."""
    ends = {*request.stop_ids, end_id}
    count = next(n for n, token in enumerate(passage.ids, 1) if token in ends)
    whole = "".join(passage.texts)
    stops = [place + len(text) for text in request.stop_text if (place := whole.find(text)) >= 0]
    if stops:
        lengths = accumulate(map(len, passage.texts))
        count = min(count, next(n for n, length in enumerate(lengths, 1) if length >= min(stops)))
    return (count, "stop") if count <= limit else (limit, "length")


def pieces(passage: Passage, count: int, size: int, tags: Set[int]) -> Iterator[Piece]:
    """The first tokens of a passage in pieces of at most some size, each tag alone."""
    start = 0
    for end in range(1, count + 1):
        alone = passage.ids[end - 1] in tags
        if alone and start < end - 1:
            yield passage.piece(start, end - 1)
            start = end - 1
        if alone or end - start == size or end == count:
            yield passage.piece(start, end)
            start = end
