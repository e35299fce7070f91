"""Scripts of a scripted model: documents, turned into tokens passage by passage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from pasta_async.lang.checks import parse
from pasta_async.lang.document import TAG_TOKENS, Document
from pasta_async.lang.views import Segment, views
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.results import FinishReason
from pasta_async.testing.tokenizer import Tokenizer

_TAG = re.compile(f"({'|'.join(map(re.escape, TAG_TOKENS))})")


ScriptLike = str | Document
"""A document in written form, or parsed."""

ScriptSource = ScriptLike | Mapping[str, ScriptLike] | Callable[[str], ScriptLike]
"""One script for everything, or one for each prompt (the last user message's text)."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens to be played, each with the text that it completes. The last one is end-of-text."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]

    def extent(self, request: DecodeRequest, end_id: int, limit: int) -> tuple[int, FinishReason]:
        """How many of its tokens a request gets, and why it ends there."""
        ends = {*request.stop_ids, end_id}
        count = next(n for n, token in enumerate(self.ids, 1) if token in ends)
        return (count, "stop") if count <= limit else (limit, "length")

    def pieces(self, count: int, size: int, tags: Set[int]) -> Iterator[Piece]:
        """The first tokens in pieces of at most some size, each tag alone."""
        starts = [0]
        for n in range(1, count):
            if n - starts[-1] == size or not tags.isdisjoint(self.ids[n - 1 : n + 1]):
                starts.append(n)
        for start, end in pairwise([*starts, count] if count else []):
            yield Piece(self.ids[start:end], "".join(self.texts[start:end]))

    def unfinished(self, count: int, tokenizer: Tokenizer) -> str:
        """The text of a character that ending after so many tokens cuts in two."""
        since = count
        while since and not self.texts[since - 1]:
            since -= 1
        return tokenizer.decode(self.ids[since:count])

    def after(self, written: tuple[int, ...]) -> Passage | None:
        """What is left when so much of it stands in the context already; None if that is something else."""
        if self.ids[: len(written)] == written:
            at = min(len(written), len(self.ids) - 1)  # the end can always be written again
            return Passage(self.ids[at:], self.texts[at:])
        return None

    def spliced(self, at: int, text: str, tokenizer: Tokenizer) -> Passage:
        """The same with a text written in, tags as tags where the tokenizer has them."""
        segments = [Segment(part, is_tag=part in TAG_TOKENS) for part in _TAG.split(text) if part]
        new = _passage(segments, tokenizer)
        ids = (*self.ids[:at], *new.ids[:-1], *self.ids[at:])
        return Passage(ids, (*self.texts[:at], *new.texts[:-1], *self.texts[at:]))


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


Passages = Mapping[int, Sequence[Passage]]
"""What each thread writes, passage by passage (only main has several). Shared by answers: never changed."""


def read_script(script: ScriptLike, tokenizer: Tokenizer, *, plain: bool) -> Passages:
    """A script in tokens; without tags it is its visible text, in one passage."""
    document = parse(script) if isinstance(script, str) else script
    if plain or tokenizer.tags is None:
        return {0: [_passage([Segment(document.text)], tokenizer)]}
    passages: dict[int, list[Passage]] = {}
    for view in views(document):
        passages.setdefault(view.thread, []).append(_passage(view.target, tokenizer))
    return passages


class AnswerState:
    """The state of one answer's playing: which request gets what."""

    def __init__(self, passages: Passages, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._passages = dict(passages)
        self._nothing = _passage([], tokenizer)
        self._starts: dict[int, list[tuple[int, ...]]] = {}  # contexts in which a thread's passages began

    def find(self, thread: int, ids: tuple[int, ...]) -> Passage:
        """What a request is answered with.

        A thread goes on in its passage if its context is that passage's with a part of it written. With any
        other context main goes on to its next one (chunks were joined), and a chunk starts again.
        """
        starts, passages = self._starts.setdefault(thread, []), self._passages.get(thread, ())
        if ids in starts:  # the same again
            del starts[starts.index(ids) + 1 :]
            return self._current(thread)
        if starts and ids[: len(starts[-1])] == starts[-1]:
            left = self._current(thread).after(ids[len(starts[-1]) :])
            if left is not None and (len(left.ids) > 1 or len(starts) >= len(passages)):
                return left
        if thread:
            starts.clear()
        starts.append(ids)
        return self._current(thread)

    def _current(self, thread: int) -> Passage:
        at, passages = len(self._starts[thread]) - 1, self._passages.get(thread, ())
        return passages[at] if at < len(passages) else self._nothing

    def rewrite(self, thread: int, ids: tuple[int, ...], passage: Passage) -> None:
        """From these ids on, the thread's passage is another one (something was written into it)."""
        starts, passages = self._starts[thread], self._passages.get(thread, ())
        at = len(starts) - 1
        starts[at] = ids
        self._passages[thread] = [*passages[:at], passage, *passages[at + 1 :]]
