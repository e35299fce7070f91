"""Examples, and the small language in which the families write them down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from pasta_async.lang.document import Chunk, Document, Promise, Sync, Text
from pasta_async.training.corpus.tokens import in_tens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.lang.document import Node

__all__ = ["Draft", "Example", "Mark", "Plan", "Sentence", "Split", "Template", "listed", "say"]

Split = Literal["train", "names", "templates"]
"""`train`; `names`: known templates, unseen names; `templates`: unseen templates, names of training."""
Mark = Literal[" ", "\n\n", "\n- "]
"""What stands before an item of an answer: in prose, paragraphs, a list."""


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
    """For each sentence of the answer that carries facts: its words that must stand there, in order."""
    names: tuple[str, ...]
    """Every open name in the prompt."""


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
    """An answer in the making: sentences by main, promises with the sentences that keep them, syncs.

    Its items, what a list would have a dash for, are set off by `mark`: a space, an empty line, or a dash.
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
        """Join what is open."""
        self.steps.append(_Step())

    @property
    def facts(self) -> tuple[tuple[str, ...], ...]:
        """The facts of every sentence, in reading order."""
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
