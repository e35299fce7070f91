"""Packed views in rows: several trees side by side in one forward pass, and their attention.

Trees stand in preorder, so one number for each token, where its subtree ends, is the whole attention mask:
token q sees token k exactly if `k <= q < ends[k]`. Trees side by side share no token, hence they do not see
each other either.

FlexAttention computes it on CUDA, `operators` tree by tree elsewhere. A model is set to one of them with its
first row, since other kernels compute something else without an error: eager attention *adds* its mask, so a
boolean one hides nothing, and Flash attention takes no such mask at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from pasta_async.training.packing import Trie
from pasta_async.training.trainer.operators import TREES, Head, linear_losses

_FLEX = "flex_attention"
"""transformers' name of FlexAttention, which has no backward pass on a CPU."""

SHARDED = "target_losses"
"""Method of a sharded model that gathers its weights around `compute_losses`."""


class Row(NamedTuple):
    """Trees side by side, and padding: one forward pass."""

    ids: Tensor
    """[1, length]"""
    positions: Tensor
    """[1, length]"""
    ends: Tensor
    """[length] where the subtree of each token ends; padding sees itself alone."""
    predictors: Tensor
    """[targets] index of the token whose logits predict a target: its parent."""
    labels: Tensor
    """[targets] id of each target."""
    owners: Tensor
    """[targets] number of the tree that a target belongs to."""
    spans: tuple[tuple[int, int], ...]
    """From where to where each tree goes, and the padding behind the last one."""

    def mask(self) -> Tensor:
        """Which token (row) sees which (column), boolean [1, 1, length, length]."""
        place = torch.arange(len(self.ends), device=self.ends.device)
        seen = (place[None, :] <= place[:, None]) & (place[:, None] < self.ends[None, :])
        return seen[None, None]


def pack_row(trees: Sequence[Trie], length: int, pad: int, device: torch.device | str = "cpu") -> Row:
    """Put trees side by side, padded to `length` tokens. Without any tree the row is padding alone.

    Raises:
        ValueError: They do not fit, or a target has nothing before it.
    """
    ids, positions = np.full(length, pad, dtype=np.int64), np.zeros(length, dtype=np.int64)
    ends = np.arange(1, length + 1, dtype=np.int64)
    targets = [np.zeros((3, 0), dtype=np.int64)]
    start, spans = 0, list[tuple[int, int]]()
    for number, tree in enumerate(trees):
        place, end = (start + part for part in tree.preorder())
        spans.append((start, start + len(tree)))
        start += len(tree)
        if start > length:
            raise ValueError(f"{sum(map(len, trees))} tokens do not fit a row of {length}")
        ids[place], positions[place], ends[place] = tree.ids, tree.depths(), end
        parents = np.array(tree.parents, dtype=np.int64)[tree.targets]
        if (parents < 0).any():
            raise ValueError("the first token of a view is a target: put a prompt before it")
        labels = np.array(tree.ids, dtype=np.int64)[tree.targets]
        targets.append(np.stack([place[parents], labels, np.full(len(labels), number)]))
    parts = (ids[None], positions[None], ends, *np.concatenate(targets, axis=1))
    return Row(*(torch.as_tensor(part, device=device) for part in parts), spans=(*spans, (start, length)))


def deal_rows(sizes: Sequence[int], capacity: int, world: int) -> list[list[int]]:
    """Deal examples to rows of at most `capacity` tokens, about equally full; row r is for process r % world.

    Each row has indexes into `sizes`, and may be empty: the number of rows is a multiple of `world`.

    Raises:
        ValueError: An example is larger than a row.
    """
    if max(sizes) > capacity:
        raise ValueError(f"an example of {max(sizes)} tokens is larger than a row of {capacity}")
    largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    rows = world * math.ceil(sum(sizes) / (capacity * world))
    while True:
        dealt, used = [list[int]() for _ in range(rows)], [0] * rows
        for index in largest_first:  # each to the row that is the least full
            row = used.index(min(used))
            dealt[row].append(index)
            used[row] += sizes[index]
        if max(used) <= capacity:
            return dealt
        rows += world


def row_length(used: int, capacity: int, few: bool) -> int:
    """Tokens of a row that holds `used` ones: the next multiple of 16.

    Where a kernel is compiled for each length there should be `few`: the capacity, its double (a large tree
    may need more), its half, and so on.
    """
    if not few:
        return max(16, -(-used // 16) * 16)
    while capacity < used:
        capacity *= 2
    while capacity % 256 == 0 and capacity // 2 >= used:
        capacity //= 2
    return capacity


def block_mask(row: Row) -> BlockMask:
    """The mask for FlexAttention, which skips the blocks in which nothing is seen."""
    ends, length = row.ends, len(row.ends)

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[key])

    return create_block_mask(seen, None, None, length, length, device=str(ends.device))


def log_probabilities(model: Any, row: Row) -> Tensor:
    """The log-probability of each tree's targets, summed: [trees], float32, with gradients.

    Equal to the sum over the document's views, each computed alone.
    """
    lost = target_losses(model, row)
    return lost.new_zeros(len(row.spans) - 1).index_add(0, row.owners, -lost)


def target_losses(model: Any, row: Row) -> Tensor:
    """The negative log-probability of each target: [targets], float32, with gradients.

    Logits are computed where a target is predicted, and nowhere else.
    """
    return getattr(model, SHARDED)(row) if isinstance(model, FSDPModule) else compute_losses(model, row)


def compute_losses(model: Any, row: Row) -> Tensor:
    """As `target_losses`, of a model whose weights are all there."""
    kernel = _FLEX if row.ids.device.type == "cuda" else TREES
    if model.config._attn_implementation != kernel:  # transformers has no public name for it
        model.set_attn_implementation(kernel)
    if kernel == _FLEX:
        attention: dict[str, Any] = {"attention_mask": block_mask(row)}
    else:
        mask = torch.zeros(1, 1, *2 * row.ends.shape, device=row.ends.device)
        attention = {"attention_mask": mask.masked_fill_(~row.mask(), -torch.inf), "spans": row.spans}
    decoded = model.get_decoder()(input_ids=row.ids, position_ids=row.positions, use_cache=False, **attention)
    hidden = decoded.last_hidden_state[0, row.predictors]
    return linear_losses(hidden, Head.of(model.get_output_embeddings()), row.labels)
