"""The program that decides whether an answer is right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta_async.training.synthetic.writing import Example

__all__ = ["score"]

_SENTENCE = re.compile(r"[^.!?]+[.!?]?")
_WORD = re.compile(r"\w+")


def score(example: Example, text: str) -> bool:
    """Whether a text answers the prompt: every fact present, correct, in its place, and no other.

    The sentences are walked in order. Each one that carries facts must state exactly the next facts that are
    due: all their words in order, the same numbers, the same names. Sentences with no number and no name of
    the prompt are free. So wording is free, while a wrong, missing, repeated or misplaced fact is a failure.
    """
    due = list(example.facts)
    for sentence in _SENTENCE.findall(text):
        said = _WORD.findall(sentence)
        if due and _states(said, due[0], example.names):
            due.pop(0)
        elif _specific(said, example.names):
            return False
    return not due


def _states(said: list[str], facts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    words = iter(said)
    in_order = all(fact in words for fact in facts)
    return in_order and _specific(said, names) == _specific(list(facts), names)


def _specific(words: list[str], names: tuple[str, ...]) -> list[str]:
    """The words that commit an answer: its numbers and the names of the prompt."""
    return [word for word in words if word.isdigit() or word in names]
