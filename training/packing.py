"""A document's views as one sequence: a trie of their tokens, with the attention that a trie needs.

Views share their contexts, so a trie holds each context once. A token attends to its ancestors and itself,
and its position is its depth: logits are exactly those of each view alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pasta_async.lang.document import Document
from pasta_async.training.tokens import Encoder, encode_views


@dataclass(slots=True)
class Trie:
    """Tokens, each behind its parent."""

    ids: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    """The index of each token's parent; -1 for the first one."""
    targets: list[int] = field(default_factory=list[int])
    """Indexes of the tokens that a thread generates."""
    _children: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, node: int, ids: Sequence[int], target: bool = False) -> int:
        """Walk from a node (-1 is the root) along ids, adding what is missing; returns the last node."""
        for token in ids:
            child = self._children.setdefault((node, token), len(self.ids))
            if child == len(self.ids):
                self.ids.append(token)
                self.parents.append(node)
            if target:
                self.targets.append(child)
            node = child
        return node

    def depths(self) -> list[int]:
        """The position of each token in every view that holds it."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    def unpacked(self) -> int:
        """Tokens of all views one by one; a view ends where the next target is no child of this one."""
        depths, following = self.depths(), [self.parents[target] for target in self.targets[1:]]
        pairs = zip(self.targets, [*following, -1], strict=True)
        return sum(depths[target] + 1 for target, parent in pairs if parent != target)

    def preorder(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each token stands in preorder, and where its subtree ends there: [tokens] each.

        What lies below a token follows it without a gap; siblings keep their order.
        """
        sizes, free, places = [1] * len(self) + [0], [0] * (len(self) + 1), list[int]()  # -1 is the root
        for index in reversed(range(len(self))):
            sizes[self.parents[index]] += sizes[index]
        for index, parent in enumerate(self.parents):
            places.append(free[parent])
            free[index] = free[parent] + 1
            free[parent] += sizes[index]
        place = np.array(places, dtype=np.int64)
        return place, place + np.array(sizes[:-1], dtype=np.int64)


def pack_views(codec: Encoder, prompt: Sequence[int], document: Document) -> Trie:
    """Every view of a document behind a prompt, with end-of-text as a target of main's last view."""
    trie = Trie()
    root = trie.extend(-1, prompt)
    for view in encode_views(codec, document):
        trie.extend(trie.extend(root, view.context), view.target, target=True)
    return trie


def pack_plain(codec: Encoder, prompt: Sequence[int], document: Document) -> Trie:
    """The baseline: the text without tags, one segment, and end-of-text."""
    trie = Trie()
    trie.extend(trie.extend(-1, prompt), [*codec.encode(document.text), codec.end], target=True)
    return trie
