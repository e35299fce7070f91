"""English words, for where a text is looked at by its words alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

SMALL: frozenset[str] = frozenset(
    (
        "a an the this that these those is are was were be been it its they their there here you your i "
        "we our he she his her in on at of for to from by with as and or but if when while one can could "
        "will would may should have has had do does also another additionally finally first firstly "
        "second secondly third next then lastly "
    ).split()
)
"""Words that say nothing of what a text is about."""

INTRODUCTION = "introduction"
"""The topic of what opens an answer: it says where the promised text stands, not what it is about."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_STEM = 4


def words(text: str) -> list[str]:
    """The words in small letters. A number is none, so the items of a list do not differ by theirs."""
    return _WORD.findall(text.lower())


def joined(items: Sequence[str]) -> str:
    """Items as a sentence has them: "A, B and C"."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def runs(found: Sequence[str], length: int) -> list[tuple[str, ...]]:
    """Every stretch of so many words, in order."""
    return [tuple(found[place : place + length]) for place in range(len(found) - length + 1)]


def same_stem(one: str, other: str) -> bool:
    """Whether two words begin alike: four letters, and all but two of the shorter one's ("taste", "tasty").

    Words of up to three letters may differ by an ending of two.
    """
    shorter, longer = sorted((one, other), key=len)
    same = max(_STEM, len(shorter) - 2)
    if len(shorter) < _STEM:
        return longer.startswith(shorter) and len(longer) - len(shorter) <= 2
    return shorter[:same] == longer[:same]
