"""Scripts of a scripted model: documents, turned into tokens passage by passage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pasta_async.lang.checks import parse
from pasta_async.lang.document import TAG_TOKENS, Document
from pasta_async.lang.views import Segment, views
from pasta_async.tokenizer import Tokenizer

ScriptLike = str | Document
"""A document in written form, or parsed."""

ScriptSource = ScriptLike | Mapping[str, ScriptLike] | Callable[[str], ScriptLike]
"""One script for everything, or one for each prompt (the last user message's text)."""

Passage = tuple[int, ...]
"""Ids that a thread writes up to the next join; end-of-text is the last one."""

Passages = dict[int, list[Passage]]
"""The passages of each thread; only main has several."""

_TAG_TOKEN = re.compile(f"({'|'.join(map(re.escape, TAG_TOKENS))})")


def encode_tagged(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of a text whose tags become tag tokens, which the text of a user never does."""
    segments = [Segment(part, is_tag=part in TAG_TOKENS) for part in _TAG_TOKEN.split(text) if part]
    return tokenizer.encode_segments(segments)


def read_script(script: ScriptLike, tokenizer: Tokenizer, *, plain: bool) -> Passages:
    """A script as the passages of its threads; if `plain`, its visible text as one passage of main."""
    document = parse(script) if isinstance(script, str) else script
    end = tokenizer.end_ids[:1]
    if plain or tokenizer.tags is None:
        return {0: [(*tokenizer.encode(document.text), *end)]}
    passages: Passages = {}
    for view in views(document):
        passages.setdefault(view.thread, []).append(tokenizer.encode_segments(view.target) + end)
    return passages


_NEXT_LINE = re.compile(r"\n+(?=\S)")


def read_on(text: str, context: str) -> str:
    """The rest of a text, as an untrained model would go on that has seen only some lines of it.

    Each line of the context is looked for behind the one before. If the context ends with a line break, the
    rest begins with the next line that is not indented.
    """
    end = 0  # of the last line that was found
    for line in context.splitlines():
        if line.strip():
            line = line.removesuffix(" ...")  # in main's context of an outline, it stands in place of an item
            start = text.find(line, end)
            if start < 0:
                return ""
            end = start + len(line)
    rest = text[end:]
    if context.endswith("\n"):
        next_line = _NEXT_LINE.search(rest)
        return rest[next_line.end() :] if next_line else ""
    return rest


class AnswerState:
    """The requests of one answer so far, which decide the passage of the next one.

    A thread goes on in its passage if its context is the one with which the passage began, and a part of the
    passage behind it. With any other context main goes on to its next passage (chunks were joined), and a
    chunk starts again.

    A model without tags has one text, and `plain` is its tokenizer. With a context that is no beginning of
    that text it goes on as `read_on` says.
    """

    def __init__(self, passages: Passages, end: int, plain: Tokenizer | None = None) -> None:
        self._plain = plain
        self._passages = passages
        self._nothing: Passage = (end,)
        self._starts: dict[int, list[tuple[int, ...]]] = {}  # contexts in which a thread's passages began

    def find(self, thread: int, ids: tuple[int, ...]) -> Passage:
        """The passage that a request with this context is answered with."""
        starts = self._starts.setdefault(thread, [])
        passages = self._passages.get(thread, ())
        # The same request again: the passage starts again.
        if ids in starts:
            del starts[starts.index(ids) + 1 :]
            return self._current(thread)
        # A part of the current passage is written: the rest of it follows, at least its end-of-text. If that
        # is all, main goes on to its next passage, if it has one.
        if starts and ids[: len(starts[-1])] == starts[-1]:
            passage = self._current(thread)
            written = ids[len(starts[-1]) :]
            if passage[: len(written)] == written:
                rest = passage[min(len(written), len(passage) - 1) :]
                if len(rest) > 1 or len(starts) >= len(passages):
                    return rest
        # Another context: main's next passage begins behind it, or a chunk's only passage begins again.
        if thread:
            starts.clear()
        starts.append(ids)
        return self._current(thread)

    def splice(self, thread: int, ids: tuple[int, ...], at: int, tokens: tuple[int, ...]) -> Passage:
        """Write tokens into the passage of a request with this context, behind its first `at` tokens."""
        passage = self.find(thread, ids)
        passage = passage[:at] + tokens + passage[at:]
        index = len(self._starts[thread]) - 1
        self._starts[thread][index] = ids
        listed = self._passages.setdefault(thread, [])
        listed[index:] = [passage, *listed[index + 1 :]]
        return passage

    def _current(self, thread: int) -> Passage:
        index = len(self._starts[thread]) - 1
        passages = self._passages.get(thread, ())
        if self._plain and (thread or index):
            text = self._plain.decode(self._passages[0][0][:-1])
            context = self._starts[thread][-1][len(self._starts[0][0]) :]
            return (*self._plain.encode(read_on(text, self._plain.decode(context))), *self._nothing)
        return passages[index] if index < len(passages) else self._nothing
