"""A document's views as one sequence: a trie of their tokens, with the attention that a trie needs.

Views share their contexts, so a trie holds each context once. A token attends to its ancestors and itself,
and its position is its depth: logits are exactly those of each view alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pasta_async.training.corpus.tokens import encode_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta_async.lang.document import Document
    from pasta_async.training.corpus.tokens import Encoder

__all__ = ["Trie", "pack_plain", "pack_views", "without_chunks"]


@dataclass(slots=True)
class Trie:
    """Tokens in topological order; `targets` are the indexes of those that a thread generates."""

    ids: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    depths: list[int] = field(default_factory=list[int])
    targets: list[int] = field(default_factory=list[int])
    _children: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def extend(self, node: int, ids: Sequence[int], target: bool = False) -> int:
        """Walk from a node (-1 is the root) along ids, adding what is missing; returns the last node."""
        for token in ids:
            key = (node, token)
            child = self._children.get(key)
            if child is None:
                child = len(self.ids)
                self._children[key] = child
                self.ids.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1 if node >= 0 else 0)
            if target:
                self.targets.append(child)
            node = child
        return node

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Which token (row) attends to which (column), padded to `size`; padding attends to itself."""
        mask = np.eye(size, dtype=np.bool_)
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                mask[index, : parent + 1] |= mask[parent, : parent + 1]
        return mask


def pack_views(
    codec: Encoder, prompt: Sequence[int], document: Document, hidden: tuple[int, int] | None = None
) -> Trie:
    """Every view of a document behind a prompt, with end-of-text as a target of main's last view.

    Args:
        codec: Of the model.
        prompt: Ids of the prompt.
        document: The annotated answer.
        hidden: An ablation: ids of `<async>` and `</async>`, and main never sees what stands between them.
    """
    trie = Trie()
    root = trie.extend(-1, prompt)
    for view in encode_views(codec, document):
        context = view.context
        if hidden and view.thread == 0:
            context = without_chunks(context, *hidden)
        trie.extend(trie.extend(root, context), view.target, target=True)
    return trie


def pack_plain(codec: Encoder, prompt: Sequence[int], document: Document) -> Trie:
    """The baseline: the text without tags, one segment, and end-of-text."""
    trie = Trie()
    trie.extend(trie.extend(-1, prompt), [*codec.encode(document.text), codec.end], target=True)
    return trie


def without_chunks(ids: Sequence[int], opens: int, closes: int) -> list[int]:
    """Ids without those from each `<async>` to its `</async>`."""
    kept: list[int] = []
    inside = False
    for token in ids:
        inside = inside or token == opens
        if not inside:
            kept.append(token)
        inside = inside and token != closes
    return kept
