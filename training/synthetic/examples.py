"""Examples of the synthetic task: how they are written down, and the program that grades an answer to one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from pasta_async.lang.document import Chunk, Document, Promise, Sync, Text
from pasta_async.training.corpus.tokens import in_tens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.lang.document import Node

__all__ = [
    "Draft",
    "Example",
    "Mark",
    "Plan",
    "Sentence",
    "Split",
    "Template",
    "grade",
    "listed",
    "merge_text",
    "say",
    "score",
]

Split = Literal["train", "names", "templates"]
"""`train`; `names`: known templates, unseen names; `templates`: unseen templates, names of training."""
Mark = Literal[" ", "\n\n", "\n- "]
"""What stands before an item of an answer: in prose, paragraphs, a list."""

_SENTENCE = re.compile(r"[^.!?]+[.!?]?")
_WORD = re.compile(r"\w+")


class Sentence(NamedTuple):
    """A sentence of an answer, and the words of it that are facts, in order."""

    text: str
    facts: tuple[str, ...]


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


class _Step(NamedTuple):
    """A step of a plan: sentences, by main or (with a topic) promised; none of them is a sync."""

    sentences: tuple[Sentence, ...] = ()
    topic: str = ""
    is_item: bool = False


@dataclass(slots=True)
class Plan:
    """An answer under construction: sentences by main, promises with the sentences that keep them, syncs.

    Its items are set off by `mark`: a space, an empty line, or the dash of a list.
    """

    mark: Mark = " "
    steps: list[_Step] = field(default_factory=list[_Step])

    def say(self, pattern: str, is_item: bool = False, **values: object) -> None:
        """Add a sentence of main."""
        self.steps.append(_Step((say(pattern, **values),), is_item=is_item))

    def promise(self, topic: str, *sentences: Sentence, is_item: bool = True) -> None:
        """Add a promise, kept by `sentences`."""
        self.steps.append(_Step(sentences, topic, is_item))

    def sync(self) -> None:
        """Join the open promises."""
        self.steps.append(_Step())

    @property
    def facts(self) -> tuple[tuple[str, ...], ...]:
        """The facts of every sentence that has any, in reading order."""
        return tuple(sentence.facts for step in self.steps for sentence in step.sentences if sentence.facts)

    def document(self, count_tokens: Callable[[str], int]) -> Document:
        """Write it down; `count_tokens` measures a chunk for its estimate, which is rounded up to tens."""
        nodes: list[Node] = []
        among_items = False
        for step in self.steps:
            if not step.sentences:
                nodes.append(Sync())
                continue
            if nodes:
                nodes.append(Text(self._space(step, among_items)))
            among_items = step.is_item or (among_items and bool(step.topic))
            text = " ".join(sentence.text for sentence in step.sentences)
            if step.topic:
                nodes.append(Promise(step.topic, in_tens(count_tokens(text)), Chunk((Text(text),))))
            else:
                nodes.append(Text(text))
        return Document(merge_text(nodes))

    def _space(self, step: _Step, among_items: bool) -> str:
        if step.is_item:
            return self.mark
        return self.mark.rstrip("- ") or " " if among_items and not step.topic else " "


class Draft(NamedTuple):
    """What a family makes of one draw."""

    prompt: str
    plan: Plan
    names: list[str]


def merge_text(nodes: list[Node]) -> tuple[Node, ...]:
    """Join neighbouring texts, as a parser reads them."""
    merged: list[Node] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, Text) and isinstance(last, Text):
            merged[-1] = Text(last.text + node.text)
        else:
            merged.append(node)
    return tuple(merged)


def say(pattern: str, **values: object) -> Sentence:
    """Fill a sentence; the values that the pattern uses are its facts, in the order of the pattern."""
    parts = pattern.format(**{key: f"\0{value}\0" for key, value in values.items()}).split("\0")
    return Sentence("".join(parts), tuple(word for part in parts[1::2] for word in part.split()))


def listed(items: Sequence[str]) -> str:
    """Join names as a sentence does: "A, B and C"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


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
