"""Annotate an answer by its structure: the items of a list do not depend on each other."""

from __future__ import annotations

import re
from itertools import pairwise

from pasta_async.lang import Chunk, Document, Node, Promise, Sync, Text

__all__ = ["annotate"]

_ITEM = re.compile(r"^(?:\d{1,2}[.)]|[-*\u2022]) +", re.MULTILINE)
_END = re.compile(r"\n(?=\n?\S)")
_WORDS = 8
"""A shorter item is not worth a promise."""


def annotate(answer: str) -> Document:
    """The same text with a promise for each item of its lists, and a sync behind a list that is not last."""
    starts = [found.end() for found in _ITEM.finditer(answer)]
    nodes, done, open_ = list[Node](), 0, False
    for start, following in pairwise([*starts, len(answer)]):
        end = _item_end(answer, start, following, last=following == len(answer))
        body = answer[start:end]
        if len(body.split()) < _WORDS:
            continue
        nodes += [Text(answer[done:start]), _promise(body)]
        done, open_ = end, True
        if following == len(answer) and answer[end:].strip():
            nodes.append(Sync())
    rest = [Text(answer[done:])] if answer[done:] else []
    return Document((*nodes, *rest)) if open_ else Document((Text(answer),))


def _item_end(answer: str, start: int, following: int, *, last: bool) -> int:
    """Where an item ends: at the next one, the last at the first line that is not indented."""
    if last:
        found = _END.search(answer, start)
        return found.start() if found else len(answer)
    line = answer.rfind("\n", start, following)
    return start + len(answer[start : max(line, start)].rstrip())


def _promise(body: str) -> Promise:
    words = re.findall(r"[\w'-]+", body)
    estimate = -(-max(len(body.split()) * 4 // 3, 1) // 10) * 10
    return Promise(" ".join(words[:3]), estimate, Chunk((Text(body),)))
