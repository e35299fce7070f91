"""Packed views as arrays: a tree in preorder, and several of them side by side in one row.

In preorder what lies below a token follows it without a gap. So one number for each token, where its subtree
ends, is the whole attention mask: token q sees token k exactly if `k <= q < ends[k]`. Trees side by side
share no token, hence they do not see each other either.
"""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta_async.training.packing import Trie

__all__ = ["Row", "Tree", "pack_row"]


@dataclass(frozen=True, slots=True)
class Tree:
    """The views of one document, each shared context once."""

    ids: NDArray[np.int64]
    """[tokens] in preorder."""
    positions: NDArray[np.int64]
    """[tokens] the depth of each: its position in every view that holds it."""
    ends: NDArray[np.int64]
    """[tokens] the index behind its subtree."""
    predictors: NDArray[np.int64]
    """[targets] index of the token whose logits predict a target: its parent."""
    labels: NDArray[np.int64]
    """[targets] id of each target."""
    unpacked: int
    """Tokens that the views would have one by one."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, trie: Trie) -> Tree:
        """Bring a trie into preorder, siblings in the order in which they were added.

        Raises:
            ValueError: A target has nothing before it.
        """
        parents = trie.parents
        if any(parents[target] < 0 for target in trie.targets):
            raise ValueError("the first token of a view is a target: put a prompt before it")
        sizes = [1] * len(trie)
        for index in range(len(trie) - 1, -1, -1):
            if parents[index] >= 0:
                sizes[parents[index]] += sizes[index]
        place = np.zeros(len(trie), dtype=np.int64)
        free, roots = [0] * len(trie), 0
        for index, parent in enumerate(parents):
            start = free[parent] if parent >= 0 else roots
            if parent >= 0:
                free[parent] += sizes[index]
            else:
                roots += sizes[index]
            place[index], free[index] = start, start + 1
        return cls(
            ids=_moved(trie.ids, place),
            positions=_moved(trie.depths, place),
            ends=_moved(place + np.array(sizes, dtype=np.int64), place),
            predictors=np.array([place[parents[target]] for target in trie.targets], dtype=np.int64),
            labels=np.array([trie.ids[target] for target in trie.targets], dtype=np.int64),
            unpacked=_unpacked(trie),
        )


def _unpacked(trie: Trie) -> int:
    """The lengths of all views together: a view ends where the next target is not the child of this one."""
    following = [trie.parents[target] for target in trie.targets[1:]] + [-1]
    pairs = zip(trie.targets, following, strict=True)
    return sum(trie.depths[target] + 1 for target, parent in pairs if parent != target)


def _moved(values: Sequence[int] | NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
    moved = np.empty(len(place), dtype=np.int64)
    moved[place] = values
    return moved


class Row(NamedTuple):
    """Trees side by side, and padding: one forward pass."""

    ids: torch.Tensor
    """[1, length]"""
    positions: torch.Tensor
    """[1, length]"""
    ends: torch.Tensor
    """[length] where the subtree of each token ends; padding sees itself alone."""
    predictors: torch.Tensor
    """[targets] index of the token whose logits predict a target."""
    labels: torch.Tensor
    """[targets]"""
    owners: torch.Tensor
    """[targets] number of the tree that a target belongs to."""
    trees: int

    def to(self, device: torch.device) -> Row:
        """The same on another device."""
        ids, positions, ends, predictors, labels, owners, trees = self
        parts = (part.to(device) for part in (ids, positions, ends, predictors, labels, owners))
        return Row(*parts, trees=trees)

    def mask(self) -> torch.Tensor:
        """Which token (row) sees which (column), boolean [1, 1, length, length]."""
        place = torch.arange(len(self.ends), device=self.ends.device)
        seen = (place[None, :] <= place[:, None]) & (place[:, None] < self.ends[None, :])
        return seen[None, None]


def pack_row(trees: Sequence[Tree], length: int, pad: int) -> Row:
    """Put trees side by side, padded to `length` tokens. Without any tree the row is padding alone."""
    used = sum(map(len, trees))
    if used > length:
        raise ValueError(f"{used} tokens do not fit a row of {length}")
    ids = np.full(length, pad, dtype=np.int64)
    positions = np.zeros(length, dtype=np.int64)
    ends = np.arange(1, length + 1, dtype=np.int64)
    predictors: list[NDArray[np.int64]] = []
    start = 0
    for tree in trees:
        part = slice(start, start + len(tree))
        ids[part], positions[part], ends[part] = tree.ids, tree.positions, tree.ends + start
        predictors.append(tree.predictors + start)
        start += len(tree)
    none = np.zeros(0, dtype=np.int64)
    owners = [np.full(len(tree.labels), number, dtype=np.int64) for number, tree in enumerate(trees)]
    return Row(
        torch.from_numpy(ids)[None],
        torch.from_numpy(positions)[None],
        torch.from_numpy(ends),
        torch.from_numpy(np.concatenate([none, *predictors])),
        torch.from_numpy(np.concatenate([none, *(tree.labels for tree in trees)])),
        torch.from_numpy(np.concatenate([none, *owners])),
        len(trees),
    )
