"""Packed views as arrays: trees in preorder, several of them side by side in one row, and their attention.

In preorder what lies below a token follows it without a gap. So one number for each token, where its subtree
ends, is the whole attention mask: token q sees token k exactly if `k <= q < ends[k]`. Trees side by side
share no token, hence they do not see each other either.

A dense boolean mask is exact with SDPA, a block mask with FlexAttention on CUDA. Other kernels would compute
something else without a word: eager attention *adds* its mask, so a boolean one hides nothing, and Flash
attention takes no such mask at all.
"""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta_async.training.packing import Trie

__all__ = [
    "Example",
    "Row",
    "Tree",
    "block_mask",
    "choose_attention",
    "deal_rows",
    "log_probabilities",
    "mask_for",
    "pack_examples",
    "pack_row",
    "row_length",
]

FLEX, SDPA = "flex_attention", "sdpa"


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


@dataclass(frozen=True, slots=True)
class Example:
    """What a loss needs at once: its trees are never spread over two rows."""

    trees: tuple[Tree, ...]
    """One document, or several that are compared with each other."""
    constants: tuple[float, ...] = ()
    """What else the loss needs, such as log-probabilities of a reference model."""

    def __len__(self) -> int:
        """Tokens in a row."""
        return sum(map(len, self.trees))


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
        *tensors, trees = self
        return Row(*(part.to(device) for part in tensors), trees=trees)

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


def deal_rows(sizes: Sequence[int], capacity: int, world: int) -> list[list[int]]:
    """Deal examples to rows of at most `capacity` tokens, about equally full; row r is for process r % world.

    Returns:
        For each row the indexes into `sizes`. Their number is a multiple of `world`, so a row may be empty.

    Raises:
        ValueError: An example is larger than a row.
    """
    if max(sizes) > capacity:
        raise ValueError(f"an example of {max(sizes)} tokens is larger than a row of {capacity}")
    largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    rows = world * max(1, math.ceil(sum(sizes) / (capacity * world)))
    while (dealt := _deal(largest_first, sizes, capacity, rows)) is None:
        rows += world
    return dealt


def _deal(order: Sequence[int], sizes: Sequence[int], capacity: int, rows: int) -> list[list[int]] | None:
    """Each example to the row that is the least full; None where one does not fit."""
    dealt: list[list[int]] = [[] for _ in range(rows)]
    heap = [(0, row) for row in range(rows)]
    for index in order:
        used, row = heapq.heappop(heap)
        if used + sizes[index] > capacity:
            return None
        dealt[row].append(index)
        heapq.heappush(heap, (used + sizes[index], row))
    return dealt


def pack_examples(examples: Sequence[Example], capacity: int, pad: int, device: torch.device) -> Row:
    """The trees of examples as one row on a device, at most `capacity` tokens long."""
    trees = [tree for example in examples for tree in example.trees]
    length = row_length(sum(map(len, trees)), capacity, few=device.type == "cuda")
    return pack_row(trees, length, pad).to(device)


def row_length(used: int, capacity: int, few: bool) -> int:
    """Tokens of a row, padding counted, for `used` ones.

    Args:
        used: Tokens of the trees.
        capacity: Most that a row may have.
        few: Whether a kernel is compiled for each length, so that there should be few: the capacity, its
            half, and so on. Otherwise the next multiple of 16.
    """
    if not few:
        return max(16, -(-used // 16) * 16)
    length = capacity
    while length % 256 == 0 and length // 2 >= used:
        length //= 2
    return length


def choose_attention(wanted: str, device: torch.device) -> str:
    """The kernel for a device: `"auto"` is FlexAttention on CUDA, SDPA elsewhere.

    Raises:
        InvalidRequestError: A kernel that cannot train on such masks there.
    """
    if wanted == "auto":
        return FLEX if device.type == "cuda" else SDPA
    if wanted not in (FLEX, SDPA):
        raise InvalidRequestError(
            f"attention {wanted!r} cannot read the mask of packed views: choose {SDPA} or {FLEX}"
        )
    if wanted == FLEX and device.type != "cuda":
        raise InvalidRequestError(
            f"{FLEX} has no backward pass on {device.type}: choose {SDPA}, or a CUDA device"
        )
    return wanted


def block_mask(row: Row) -> BlockMask:
    """The mask for FlexAttention, which skips the blocks in which nothing is seen."""
    ends = row.ends

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[key])

    length = len(ends)
    return create_block_mask(seen, None, None, length, length, device=str(ends.device))


def mask_for(model: Any, row: Row) -> torch.Tensor | BlockMask:
    """The mask of a row in the form that the model's attention reads.

    Raises:
        InvalidRequestError: The model's attention reads neither form.
    """
    kernel: str = model.config._attn_implementation  # transformers has no public name for it
    choose_attention(kernel, row.ids.device)
    return block_mask(row) if kernel == FLEX else row.mask()


def log_probabilities(model: Any, row: Row) -> torch.Tensor:
    """The log-probability of each tree's targets, summed: [trees], float32, with gradients.

    Equal to the sum over the document's views, each computed alone. Logits are computed where a target is
    predicted, and nowhere else.

    Raises:
        InvalidRequestError: The model's attention cannot read the row's mask.
    """
    logits = model(
        input_ids=row.ids,
        attention_mask=mask_for(model, row),
        position_ids=row.positions,
        use_cache=False,
        logits_to_keep=row.predictors,
    ).logits[0]
    lost = functional.cross_entropy(logits.float(), row.labels, reduction="none")
    return lost.new_zeros(row.trees).index_add(0, row.owners, -lost)
