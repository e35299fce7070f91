"""What methods without tags make of a written document: parts that do not depend on each other, in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta_async.lang import Document, Promise, Sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.lang import Node

__all__ = ["Part", "outline", "rounds"]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the visible text that is decoded on its own."""

    topic: str
    """Empty where nothing was promised."""
    text: str


def rounds(document: Document) -> list[list[Part]]:
    """The visible text as parts, in rounds that have to come one after another.

    A part is a promised chunk with the text before it; what follows the last one of a round belongs to it,
    and a round without promises is one part. All parts together are the visible text.
    """
    result = list[list[Part]]()
    nodes = list["Node"]()
    for node in (*document.nodes, Sync()):
        if isinstance(node, Sync):
            result += [parts] if (parts := _parts(nodes)) else []
            nodes = []
        else:
            nodes.append(node)
    return result


def _parts(nodes: Sequence[Node]) -> list[Part]:
    parts, text = list[Part](), ""
    for node in nodes:
        text += node.text
        if isinstance(node, Promise):
            parts.append(Part(node.topic, text))
            text = ""
    if parts:
        parts[-1] = Part(parts[-1].topic, parts[-1].text + text)
    elif text:
        parts.append(Part("", text))
    return parts


def outline(parts: Sequence[Part]) -> str:
    """The numbered list that Skeleton-of-Thought decodes first: a few words for each part."""
    return "\n".join(f"{number}. {part.topic or 'Conclusion'}" for number, part in enumerate(parts, 1))
