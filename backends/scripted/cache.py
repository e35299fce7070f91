"""A prefix cache that remembers which token sequences were computed, without any values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PrefixTree"]


@dataclass(slots=True)
class _Node:
    edge: tuple[int, ...]
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])


class PrefixTree:
    """A radix tree of token sequences; nothing is ever evicted."""

    def __init__(self) -> None:
        self._root = _Node(())

    def match(self, ids: Sequence[int]) -> int:
        """How many of the first ids some sequence begins with."""
        return self._walk(tuple(ids))[0]

    def add(self, ids: Sequence[int]) -> int:
        """Remember a sequence; returns how much of it was known before."""
        ids = tuple(ids)
        at, node, parent, taken = self._walk(ids)
        if taken < len(node.edge):  # split the edge
            upper = _Node(node.edge[:taken], {node.edge[taken]: node})
            parent.children[node.edge[0]] = upper
            node.edge = node.edge[taken:]
            node = upper
        if at < len(ids):
            node.children[ids[at]] = _Node(ids[at:])
        return at

    def _walk(self, ids: tuple[int, ...]) -> tuple[int, _Node, _Node, int]:
        """Ids matched, the node reached, its parent, and how much of its edge matched."""
        at, node, parent, taken = 0, self._root, self._root, 0
        while at < len(ids) and (child := node.children.get(ids[at])) is not None:
            parent, node = node, child
            taken = _common(child.edge, ids[at : at + len(child.edge)])
            at += taken
            if taken < len(child.edge):
                break
        return at, node, parent, taken if node is not self._root else 0


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    if left == right:
        return len(left)
    for n, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return n
    return min(len(left), len(right))
