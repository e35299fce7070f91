"""Scripts of a scripted model: documents, turned into tokens passage by passage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pasta_async.lang.checks import parse
from pasta_async.lang.document import Document
from pasta_async.lang.views import views
from pasta_async.tokenizer import Tokenizer

ScriptLike = str | Document
"""A document in written form, or parsed."""

ScriptSource = ScriptLike | Mapping[str, ScriptLike] | Callable[[str], ScriptLike]
"""One script for everything, or one for each prompt (the last user message's text)."""

Passage = tuple[int, ...]
"""Ids that a thread writes up to the next join; end-of-text is the last one."""

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


class Script:
    """A document as the passages of an answer's threads, and how far each of them has got.

    A thread goes on in its passage if its context is the one with which the passage began, and a part of the
    passage behind it. With any other context main goes on to its next passage (chunks were joined), and a
    chunk starts again.

    A model without tags has one text; with any other context than the prompt it goes on as `read_on` says.

    Args:
        script: The document.
        tokenizer: The tokenizer of the model that plays it.
        prompt: Length of the answer's prompt in tokens.
        plain: True for the visible text as one passage of main.
    """

    def __init__(self, script: ScriptLike, tokenizer: Tokenizer, prompt: int, *, plain: bool) -> None:
        document = parse(script) if isinstance(script, str) else script
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._end = tokenizer.end_ids[:1]
        self._text = document.text
        self._passages: dict[int, list[Passage]] = {}
        self._begun: dict[int, tuple[int, Passage, Passage]] = {}
        """The number of each thread's passage, the context before it, and its ids."""
        if plain or tokenizer.tags is None:
            self._passages[0] = [(*tokenizer.encode(self._text), *self._end)]
            return
        for view in views(document):
            passage = tokenizer.encode_segments(view.target) + self._end
            self._passages.setdefault(view.thread, []).append(passage)

    def find(self, thread: int, ids: tuple[int, ...]) -> Passage:
        """The ids that a request with this context is answered with."""
        number, start, passage = self._begun.get(thread, (-1, (), ()))
        if number >= 0 and ids[: len(start)] == start:
            written = ids[len(start) :]
            if passage[: len(written)] == written:
                rest = passage[min(len(written), len(passage) - 1) :]
                # If only end-of-text is left, main goes on to its next passage, if it has one.
                if len(rest) > 1 or not written or number + 1 >= len(self._passages.get(thread, ())):
                    return rest
        number = 0 if thread else number + 1
        passage = self._passage(thread, number, ids)
        self._begun[thread] = number, ids, passage
        return passage

    def _passage(self, thread: int, number: int, ids: tuple[int, ...]) -> Passage:
        if self._tokenizer.tags is None and (thread or number):
            context = self._tokenizer.decode(ids[self._prompt :])
            return (*self._tokenizer.encode(read_on(self._text, context)), *self._end)
        passages = self._passages.get(thread, [])
        return passages[number] if number < len(passages) else self._end
