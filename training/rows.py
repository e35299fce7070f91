"""Packed views in rows: several trees side by side in one forward pass, their attention and their losses.

Trees stand in preorder, so one number for each token, where its subtree ends, is the whole attention mask:
token q sees token k exactly if `k <= q < ends[k]`. Trees side by side share no token, hence they do not see
each other either.

FlexAttention computes it on CUDA, torch's `scaled_dot_product_attention` elsewhere. A model is set to one of
them with its first row, since other kernels compute something else without an error: eager attention *adds*
its mask, so a boolean one hides nothing, and Flash attention takes no such mask at all.
"""

# torch, transformers and peft leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from pasta_async.backends.options import TorchDType
from pasta_async.training.views import Trie

_FLEX = "flex_attention"
"""transformers' name of FlexAttention, which has no backward pass on a CPU."""

_DENSE = "sdpa"
"""transformers' name of `scaled_dot_product_attention`, which gets a mask of all pairs of tokens."""

_AT_ONCE = 128
"""Targets whose logits are in memory together: blocks of up to 32 MiB are used again, larger ones are not."""


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

    def mask(self) -> Tensor:
        """True where a token (row) sees another (column): [1, 1, length, length]."""
        position = torch.arange(len(self.ends), device=self.ends.device)
        seen = (position[None, :] <= position[:, None]) & (position[:, None] < self.ends[None, :])
        return seen[None, None]


def pack_row(trees: Sequence[Trie], length: int, device: torch.device | str = "cpu") -> Row:
    """Put trees side by side, padded to `length` tokens. Without any tree the row is padding alone."""
    ids = np.zeros(length, dtype=np.int64)  # nothing sees padding, whatever its ids
    positions = np.zeros(length, dtype=np.int64)
    ends = np.arange(1, length + 1, dtype=np.int64)  # padding sees itself alone
    targets = [np.zeros((2, 0), dtype=np.int64)]
    start = 0
    for tree in trees:
        # The place of each of the tree's tokens in the row, and the end of its subtree there.
        slots, end = (start + np.array(part, dtype=np.int64) for part in tree.preorder())
        start += len(tree)
        ids[slots] = tree.ids
        positions[slots] = tree.depths()
        ends[slots] = end
        parents = np.array(tree.parents, dtype=np.int64)[tree.targets]
        labels = np.array(tree.ids, dtype=np.int64)[tree.targets]
        targets.append(np.stack([slots[parents], labels]))
    parts = (ids[None], positions[None], ends, *np.concatenate(targets, axis=1))
    return Row(*(torch.as_tensor(part, device=device) for part in parts))


def computes_half(dtype: TorchDType, device: torch.device) -> bool:
    """True if a device is to compute in bfloat16."""
    return dtype == "bfloat16" or (dtype == "auto" and device.type == "cuda")


def deal_rows(sizes: Sequence[int], capacity: int, world: int) -> list[list[int]]:
    """Deal examples to rows of at most `capacity` tokens, about equally full; row r is for process r % world.

    Each row has indexes into `sizes`. An example of more tokens has a row to itself. A row may be empty: the
    number of rows is a multiple of `world`.
    """
    largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    tokens = sum(min(size, capacity) for size in sizes)
    rows = world * math.ceil(tokens / (capacity * world))
    while True:
        dealt = [list[int]() for _ in range(rows)]
        used = [0] * rows
        for index in largest_first:  # each to the row that is the least full
            row = used.index(min(used))
            dealt[row].append(index)
            used[row] += sizes[index]
        if all(size <= capacity or len(row) == 1 for size, row in zip(used, dealt, strict=True)):
            return dealt
        rows += world


def row_length(used: int, capacity: int, device: torch.device) -> int:
    """Tokens of a row that holds `used` ones, for the attention that a device computes (`target_losses`).

    CUDA's kernel is compiled for each length. So there are few: the capacity, its double (a large tree may
    need more), its half, and so on. Others take the next multiple of 16.
    """
    if device.type != "cuda":
        return max(16, 16 * math.ceil(used / 16))
    while capacity < used:
        capacity *= 2
    while capacity % 256 == 0 and capacity // 2 >= used:
        capacity //= 2
    return capacity


def block_mask(row: Row) -> BlockMask:
    """The mask for FlexAttention, which skips the blocks in which nothing is seen."""
    ends = row.ends
    length = len(ends)

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[key])

    return create_block_mask(seen, None, None, length, length, device=str(ends.device))


def target_losses(model: Any, row: Row) -> Tensor:
    """The negative log-probability of each target: [targets], float32, with gradients.

    Equal to the losses of the document's views, each computed alone. Logits are computed where a target is
    predicted, and nowhere else.
    """
    kernel = _FLEX if row.ids.device.type == "cuda" else _DENSE
    if model.config._attn_implementation != kernel:  # transformers has no public name for it
        model.set_attn_implementation(kernel)
    mask = block_mask(row) if kernel == _FLEX else row.mask()
    decode = model.get_decoder()
    decoded = decode(input_ids=row.ids, attention_mask=mask, position_ids=row.positions, use_cache=False)
    hidden = decoded.last_hidden_state[0, row.predictors]
    return linear_losses(hidden, Head.of(model.get_output_embeddings()), row.labels)


# --- what a step computes itself, where transformers and peft would spend most of their time


class Head(NamedTuple):
    """The rows of the vocabulary: one table, or a frozen one with rows beside it that are trained.

    peft would merge the two into another table for each pass.
    """

    table: Tensor
    """[vocabulary, hidden]"""
    ids: Tensor
    """[trained] ids of the rows beside it"""
    rows: Tensor
    """[trained, hidden] rows that take the place of the table's"""

    @classmethod
    def of(cls, layer: Any) -> Head:
        """The rows of an embedding or an output layer, peft's or a plain one."""
        adapter = getattr(layer, "token_adapter", layer)
        if not hasattr(adapter, "trainable_tokens_delta"):
            table = layer.weight
            return cls(table, torch.empty(0, dtype=torch.long, device=table.device), table[:0])
        (rows,), (ids,) = adapter.trainable_tokens_delta.values(), adapter.token_indices.values()
        table = adapter.base_layer.weight
        return cls(table, torch.tensor(ids, device=table.device), rows.to(table.dtype))


def embed(adapter: Any, ids: Tensor, *_: Any) -> Tensor:
    """Forward pass of peft's `TrainableTokensLayer`, without a copy of the table and a gradient of all."""
    head = Head.of(adapter)
    same = ids[..., None] == head.ids
    trained = functional.embedding(same.int().argmax(-1), head.rows)
    return torch.where(same.any(-1, keepdim=True), trained, functional.embedding(ids, head.table))


def linear_losses(hidden: Tensor, head: Head, labels: Tensor) -> Tensor:
    """The negative log-probability of each label, float32, with gradients: [targets], as `labels`.

    The states that predict them, `hidden`, are [targets, hidden].
    """
    if head.table.requires_grad:
        return functional.cross_entropy((hidden @ head.table.T).float(), labels, reduction="none")
    scores = hidden @ head.rows.T
    return _Losses.apply(hidden, head.table, labels, head.ids, scores)  # pyright: ignore[reportReturnType]


class _Losses(torch.autograd.Function):
    """Losses and their slopes in one pass, a few targets at a time.

    The logits of all targets would be the largest array of a step; so they are never kept for the backward
    pass, which only scales the slopes by the gradient of each loss.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, labels: Tensor, ids: Tensor, logits: Tensor
    ) -> Tensor:
        """The losses: [targets]. `logits`, [targets, trained], replace those of the table's rows `ids`."""
        losses = hidden.new_empty(len(labels), dtype=torch.float32)
        learns = ctx.needs_input_grad[0]
        hidden_slope = torch.empty_like(hidden) if learns else hidden[:0]
        logits_slope = torch.empty_like(logits) if learns else logits[:0]
        for start in range(0, len(labels), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            label = labels[part, None]
            scores = (hidden[part] @ table.T).float()
            scores[:, ids] = logits[part].float()
            scores = scores.log_softmax(-1)
            losses[part] = -scores.gather(1, label)[:, 0]
            if learns:
                # The slope of -log softmax is the probabilities, less 1 at the label. What it says about the
                # trained rows goes to their logits; the rest goes through the frozen table to the states.
                slope = scores.exp_().scatter_add_(1, label, scores.new_full(label.shape, -1.0))
                logits_slope[part] = slope[:, ids].to(logits.dtype)
                slope[:, ids] = 0.0
                hidden_slope[part] = slope.to(table.dtype) @ table
        ctx.save_for_backward(hidden_slope, logits_slope)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The slopes for `hidden` and `logits`, scaled by the gradient of each loss."""
        hidden, logits = (slope * grads[0][:, None].to(slope.dtype) for slope in ctx.saved_tensors)
        return hidden, None, None, None, logits
