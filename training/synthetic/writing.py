"""Examples, and the small language in which the families write them down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from pasta_async.lang.document import Chunk, Document, Promise, Sync, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.lang.document import Node

__all__ = ["Draft", "Example", "Plan", "Sentence", "Split", "Template", "listed", "say"]

Split = Literal["train", "names", "templates"]
"""`train`; `names`: known templates, unseen names; `templates`: unseen templates, names of training."""


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
    """How a user words a request: a frame around the facts, and the wording of each fact."""

    frame: str
    fact: str
    as_list: bool = False

    def fill(self, facts: Sequence[dict[str, object]], **slots: object) -> str:
        """Write the prompt."""
        lines = [self.fact.format(**slots, **fact) for fact in facts]
        if not self.as_list:
            return self.frame.format(facts=" ".join(lines), **slots)
        frame = self.frame.replace(" {facts}", "\n{facts}").replace("{facts} ", "{facts}\n")
        return frame.format(facts="\n".join(f"- {line}" for line in lines), **slots)


@dataclass(slots=True)
class Plan:
    """An answer in the making: sentences by main, promises with the sentences that keep them, syncs."""

    steps: list[Sentence | tuple[str, tuple[Sentence, ...]] | None] = field(
        default_factory=list[Sentence | tuple[str, tuple["Sentence", ...]] | None]
    )

    def say(self, pattern: str, **values: object) -> None:
        """Add a sentence of main."""
        self.steps.append(say(pattern, **values))

    def promise(self, topic: str, *sentences: Sentence) -> None:
        """Add a promise, kept by `sentences`."""
        self.steps.append((topic, sentences))

    def sync(self) -> None:
        """Join what is open."""
        self.steps.append(None)

    @property
    def facts(self) -> tuple[tuple[str, ...], ...]:
        """The facts of every sentence, in reading order."""
        found: list[tuple[str, ...]] = []
        for step in self.steps:
            if isinstance(step, Sentence):
                found.append(step.facts)
            elif step is not None:
                found.extend(sentence.facts for sentence in step[1])
        return tuple(facts for facts in found if facts)

    def document(self, count_tokens: Callable[[str], int]) -> Document:
        """Write it down; `count_tokens` measures a chunk for its estimate, which is rounded up to tens."""
        nodes: list[Node] = []
        space = ""
        for step in self.steps:
            if step is None:
                nodes.append(Sync())
                continue
            if isinstance(step, Sentence):
                nodes.append(Text(space + step.text))
            else:
                if space:
                    nodes.append(Text(space))
                topic, sentences = step
                text = " ".join(sentence.text for sentence in sentences)
                estimate = 10 * max(1, -(-count_tokens(text) // 10))
                nodes.append(Promise(topic, estimate, Chunk((Text(text),))))
            space = " "
        return Document(merge_text(nodes))


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
