"""The program that decides whether an answer is right, and how much of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta_async.training.synthetic.writing import Example

__all__ = ["grade", "score"]

_SENTENCE = re.compile(r"[^.!?]+[.!?]?")
_WORD = re.compile(r"\w+")


def score(example: Example, text: str) -> bool:
    """Whether a text answers the prompt: every fact present, correct, in its place, and no other.

    Each sentence that carries facts must state exactly the next facts that are due: all their words in order,
    the same numbers, the same names. Sentences with no number and no name of the prompt are free. So wording
    is free, while a wrong, missing, repeated or misplaced fact is a failure.
    """
    return grade(example, text) == 1.0


def grade(example: Example, text: str) -> float:
    """How much of an answer is right, from 0 to 1; `score` asks for 1.

    The sentences that state what is due, in its order (as many as possible), over the sentences that are due
    or, if these are more, over those that commit themselves: that have a number, a name, or any due facts. So
    what is missing, wrong, repeated or misplaced costs its share.
    """
    committed = 0
    longest = [0] * (len(example.facts) + 1)  # of common subsequences with the first facts
    for sentence in _SENTENCE.findall(text):
        words = _WORD.findall(sentence)
        stated = [_states(words, facts, example.names) for facts in example.facts]
        committed += any(stated) or bool(_specific(words, example.names))
        before = list(longest)
        for place, match in enumerate(stated, start=1):
            longest[place] = max(before[place - 1] + match, before[place], longest[place - 1])
    return longest[-1] / max(len(example.facts), committed)


def _states(said: list[str], facts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    words = iter(said)
    in_order = all(fact in words for fact in facts)
    return in_order and _specific(said, names) == _specific(list(facts), names)


def _specific(words: list[str], names: tuple[str, ...]) -> list[str]:
    """The words that commit an answer: its numbers and the names of the prompt."""
    return [word for word in words if word.isdigit() or word in names]
