"""What a scripted model says: documents and raw scripts, turned into tokens stretch by stretch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pasta_async.lang.document import ASYNC_CLOSE, TAG_TOKENS, Chunk, Document, Node, Sync, Text
from pasta_async.lang.parser import parse
from pasta_async.lang.views import Segment, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.backends.scripted.words import Tokenizer

__all__ = ["Answer", "Lines", "Script", "ScriptLike", "ScriptSource", "Stretch"]


@dataclass(frozen=True, slots=True)
class Script:
    """What a model writes, character by character, for models that write tags as plain text.

    Nothing in it is checked: this is the place for chunks written inline, code fences, odd quotes.
    """

    main: Sequence[str]
    """The main thread's text, one item for each stretch: a new one begins behind a `<sync/>` that joined."""
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
class Stretch:
    """Tokens to be played, each with the text that it completes. The last one is end-of-text."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]

    def after(self, written: tuple[int, ...], tokenizer: Tokenizer) -> Stretch | None:
        """What is left when so much of it stands in the context already; None if that is something else."""
        if self.ids[: len(written)] == written:
            at = min(len(written), len(self.ids) - 1)  # the end can always be heard again
            return Stretch(self.ids[at:], self.texts[at:])
        return self._after_text(tokenizer.decode(written), tokenizer)

    def _after_text(self, written: str, tokenizer: Tokenizer) -> Stretch | None:
        """The same by text: a prompted model's tokens may have been cut and encoded again."""
        done = 0
        for n, text in enumerate(self.texts):
            if not written.startswith(text, done):
                if not text.startswith(written[done:]):
                    return None
                rest = _spell(Segment(text[len(written) - done :]), tokenizer)
                return Stretch((*rest.ids, *self.ids[n + 1 :]), (*rest.texts, *self.texts[n + 1 :]))
            done += len(text)
            if done == len(written):
                return Stretch(self.ids[n + 1 :], self.texts[n + 1 :])
        return None

    def spliced(self, at: int, text: str, tokenizer: Tokenizer) -> Stretch:
        """The same with a text written in, tags as tags where the tokenizer has them."""
        new = _stretch(_cut(text), tokenizer)
        ids = (*self.ids[:at], *new.ids[:-1], *self.ids[at:])
        return Stretch(ids, (*self.texts[:at], *new.texts[:-1], *self.texts[at:]))


def _cut(text: str) -> list[Segment]:
    """Cut a text at the tag tokens in it."""
    for tag in TAG_TOKENS:
        if tag in text:
            before, _, behind = text.partition(tag)
            return [*_cut(before), Segment(tag, is_tag=True), *_cut(behind)]
    return [Segment(text)] if text else []


def _stretch(segments: Sequence[Segment], tokenizer: Tokenizer) -> Stretch:
    parts = [_spell(segment, tokenizer) for segment in segments]
    ids = [token for part in parts for token in part.ids]
    texts = [text for part in parts for text in part.texts]
    return Stretch((*ids, tokenizer.end_id), (*texts, ""))


def _spell(segment: Segment, tokenizer: Tokenizer) -> Stretch:
    """Tokens of a segment, with the text that each completes: all in all, the segment's own."""
    if segment.is_tag and tokenizer.tags is not None:
        return Stretch((tokenizer.tags[TAG_TOKENS.index(segment.text)],), (segment.text,))
    ids = tokenizer.encode(segment.text)
    texts = [tokenizer.decode([token]) for token in ids]
    if "".join(texts) != segment.text:
        texts = _lagging(ids, segment.text, tokenizer)
    return Stretch(tuple(ids), tuple(texts))


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


class Lines:
    """A script in tokens: what main says, stretch by stretch, and what each thread says."""

    def __init__(self, script: ScriptLike, tokenizer: Tokenizer, *, plain: bool) -> None:
        """Read a script; a plain one is its visible text, in one stretch."""
        self.script: ScriptLike = script
        self.tokenizer: Tokenizer = tokenizer
        self.main: list[Stretch] = []
        self.chunks: dict[int, Stretch] = {}
        document = parse(script) if isinstance(script, str) else script
        if isinstance(document, Document) and plain:
            self.main = [self.stretch([Segment(document.text)])]
        elif isinstance(document, Document) and tokenizer.tags is not None:
            self._read(document)
        else:
            raw = Script.of(document) if isinstance(document, Document) else document
            self.main = [self.stretch([Segment(text)]) for text in raw.main]
            self.chunks = {k: self.stretch([Segment(text)]) for k, text in raw.chunks.items()}

    def _read(self, document: Document) -> None:
        for view in views(document):
            if view.thread:
                self.chunks[view.thread] = self.stretch(view.target)
            else:
                self.main.append(self.stretch(view.target))

    def stretch(self, segments: Sequence[Segment] = ()) -> Stretch:
        """Segments in tokens, with the end behind them."""
        return _stretch(segments, self.tokenizer)


class Answer:
    """The state of one answer's playing: which request is to hear what."""

    def __init__(self, lines: Lines) -> None:
        self._tokenizer = lines.tokenizer
        self._main, self._chunks = lines.main, lines.chunks  # shared, so never changed
        self._silence = lines.stretch()
        self._starts: list[tuple[int, ...]] = []  # contexts of main's stretches
        self._bases: dict[int, tuple[int, ...]] = {}  # where each thread's current stretch began

    def find(self, thread: int, ids: tuple[int, ...]) -> Stretch:
        """What a request is to hear.

        Main goes on in its stretch if its context is that stretch's with a part of it written; with any
        other context (chunks were joined) it goes on to the next one.
        """
        if thread == 0:
            return self._find_main(ids)
        stretch = self._chunks.get(thread, self._silence)
        base = self._bases.get(thread) or self._behind_open(ids, stretch)
        left = stretch.after(ids[len(base) :], self._tokenizer) if ids[: len(base)] == base else None
        if left is None:
            base, left = ids, stretch
        if self._tokenizer.tags is None:  # where a chunk began cannot be told from its context
            self._bases[thread] = base
        return left

    def _behind_open(self, ids: tuple[int, ...], stretch: Stretch) -> tuple[int, ...]:
        """The context up to the `<async>` behind which only tokens of this chunk stand."""
        tags = self._tokenizer.tags
        for at in range(max(0, len(ids) - len(stretch.ids)), len(ids)):
            if tags and ids[at] == tags.open_async and stretch.ids[: len(ids) - at - 1] == ids[at + 1 :]:
                return ids[: at + 1]
        return ids

    def _find_main(self, ids: tuple[int, ...]) -> Stretch:
        if ids in self._starts:  # the same again
            del self._starts[self._starts.index(ids) + 1 :]
            return self._current()
        if self._starts and ids[: len(self._starts[-1])] == self._starts[-1]:
            left = self._current().after(ids[len(self._starts[-1]) :], self._tokenizer)
            if left is not None and (len(left.ids) > 1 or len(self._starts) >= len(self._main)):
                return left
        self._starts.append(ids)
        return self._current()

    def _current(self) -> Stretch:
        at = len(self._starts) - 1
        return self._main[at] if at < len(self._main) else self._silence

    def rewrite(self, thread: int, ids: tuple[int, ...], stretch: Stretch) -> None:
        """From these ids on, the thread's stretch is another one (something was written into it)."""
        if thread:
            self._bases[thread] = ids
            self._chunks = {**self._chunks, thread: stretch}
        else:
            at = len(self._starts) - 1
            self._starts[at] = ids
            self._main = [*self._main[:at], stretch, *self._main[at + 1 :]]
