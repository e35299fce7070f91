"""Examples of the synthetic task, and the program that grades an answer to one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pasta_async.lang.document import Document, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.lang.document import Node


__all__ = ["Example", "Split", "Template", "grade", "merge_text", "score"]

Split = Literal["train", "names", "templates"]
"""`train`; `names`: known templates, unseen names; `templates`: unseen templates, names of training."""

_SENTENCE = re.compile(r"[^.!?]+[.!?]?")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, the answer that a perfect model writes, and what a program checks in any answer."""

    family: str
    split: Split
    seed: int
    prompt: str
    """What a user types."""
    document: Document
    """The annotated answer; its `text` is the answer of the plain baseline."""
    facts: tuple[tuple[str, ...], ...]
    """For each sentence of the answer that states facts: the words that it must contain, in order."""
    names: tuple[str, ...]
    """Every invented name in the prompt."""


@dataclass(frozen=True, slots=True)
class Template:
    """How a user words a request: a frame around the facts, the wording of each fact, and small talk."""

    frame: str
    fact: str
    as_list: bool = False
    opening: str = ""
    closing: str = ""

    def fill(self, facts: Sequence[dict[str, object]], **slots: object) -> str:
        """Write the prompt."""
        lines = [self.fact.format(**slots, **fact) for fact in facts]
        frame = " ".join(part for part in (self.opening, self.frame, self.closing) if part)
        if not self.as_list:
            return frame.format(facts=" ".join(lines), **slots)
        frame = frame.replace(" {facts}", "\n{facts}").replace("{facts} ", "{facts}\n")
        return frame.format(facts="\n".join(f"- {line}" for line in lines), **slots)


def merge_text(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Join neighbouring texts, as a parser reads them."""
    merged: list[Node] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, Text) and isinstance(last, Text):
            merged[-1] = Text(last.text + node.text)
        else:
            merged.append(node)
    return tuple(merged)


def score(example: Example, text: str) -> bool:
    """Whether a text answers the prompt: every fact present, correct, in its place, and no other.

    Each sentence that states facts must state exactly the next expected facts: all their words in order, the
    same numbers, the same names. Sentences with no number and no name of the prompt are free, and so is the
    wording; a wrong, missing, repeated or misplaced fact is a failure.
    """
    return grade(example, text) == 1.0


def grade(example: Example, text: str) -> float:
    """How much of an answer is right, from 0 to 1; `score` asks for 1.

    The number of sentences that state the expected facts in the expected order (the longest such sequence),
    divided by the number of expected sentences or, if larger, of sentences that claim anything: that have a
    number, a name, or any expected facts. What is missing, wrong, repeated or misplaced costs its share.
    """
    claims = 0
    longest = [0] * (len(example.facts) + 1)  # common subsequences with the first facts
    for sentence in _SENTENCE.findall(text):
        words = _WORD.findall(sentence)
        stated = [_states(words, facts, example.names) for facts in example.facts]
        claims += any(stated) or bool(_specific(words, example.names))
        before = list(longest)
        for place, match in enumerate(stated, start=1):
            longest[place] = max(before[place - 1] + match, before[place], longest[place - 1])
    return longest[-1] / max(len(example.facts), claims)


def _states(words: list[str], facts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    remaining = iter(words)
    in_order = all(fact in remaining for fact in facts)
    return in_order and _specific(words, names) == _specific(list(facts), names)


def _specific(words: list[str], names: tuple[str, ...]) -> list[str]:
    """The words that can be right or wrong: numbers and the names of the prompt."""
    return [word for word in words if word.isdigit() or word in names]
