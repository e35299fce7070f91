"""What a step of training computes itself, where transformers and peft would spend most of their time.

Attention of trees side by side, losses without a table of all logits, and embeddings of which few rows learn.
"""

# torch, transformers and peft leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

TREES = "trees"
"""Name of `_tree_attention` for transformers."""

_MOST_SCORES = 1024
"""Tokens of a tree up to which its attention is computed with all scores in memory."""

_AT_ONCE = 128
"""Targets whose logits are in memory together; a block of up to 32 MiB is used again, a larger one is not."""


def _tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    spans: Sequence[tuple[int, int]],
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention inside each span, since trees do not see each other; the spans together are the row.

    Queries are [1, heads, length, size], keys and values [1, key heads, length, size], the mask (0 for what
    is seen, else -inf) [1, 1, length, length]; the result is [1, length, heads, size].
    """
    mixed: list[Tensor] = []
    for start, end in filter(lambda span: span[0] < span[1], spans):
        q, k, v = (part[:, :, start:end] for part in (query, key, value))
        mask = attention_mask[:, :, start:end, start:end].to(q.dtype)
        if q.dtype == torch.bfloat16 and end - start <= _MOST_SCORES and q.device.type == "cpu":
            mixed.append(_products(q[0], k[0], v[0], mask[0], scaling))
        else:
            attended = functional.scaled_dot_product_attention(q, k, v, mask, scale=scaling, enable_gqa=True)
            mixed.append(attended[0])
    return torch.cat(mixed, 1).transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(TREES, _tree_attention)


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention as two products, three times as fast as torch's kernel in bfloat16 on a CPU."""
    heads, length, size = q.shape
    groups = heads // len(k)
    scores = q.reshape(len(k), groups * length, size) @ (k * scaling).transpose(1, 2)
    weights = (scores.view(len(k), groups, length, length) + mask).softmax(-1)
    return (weights.view(len(k), groups * length, length) @ v).view(heads, length, size)


class Head(NamedTuple):
    """The rows of the vocabulary: one table, or a frozen one with rows beside it that are trained.

    peft would merge the two into another table for each pass.
    """

    table: Tensor
    """[vocabulary, hidden]"""
    ids: Tensor | None = None
    """[trained] of those beside it"""
    rows: Tensor | None = None
    """[trained, hidden] in their place"""

    @classmethod
    def of(cls, layer: Any) -> Head:
        """The rows of an embedding or an output layer, peft's or a plain one."""
        adapter = getattr(layer, "token_adapter", layer)
        if not hasattr(adapter, "trainable_tokens_delta"):
            return cls(layer.weight)
        (rows,), (ids,) = adapter.trainable_tokens_delta.values(), adapter.token_indices.values()
        table = adapter.base_layer.weight
        return cls(table, torch.tensor(ids, device=table.device), rows.to(table.dtype))


def embed(adapter: Any, ids: Tensor, *_: Any) -> Tensor:
    """Forward pass of peft's `TrainableTokensLayer`, without a copy of the table and a gradient of all."""
    head = Head.of(adapter)
    assert head.ids is not None and head.rows is not None
    same = ids[..., None] == head.ids
    trained = functional.embedding(same.int().argmax(-1), head.rows)
    return torch.where(same.any(-1, keepdim=True), trained, functional.embedding(ids, head.table))


def linear_losses(hidden: Tensor, head: Head, labels: Tensor) -> Tensor:
    """The negative log-probability of each label, float32, with gradients: [targets], as `labels`.

    The states that predict them, `hidden`, are [targets, hidden].
    """
    if head.table.requires_grad:
        return functional.cross_entropy((hidden @ head.table.T).float(), labels, reduction="none")
    ids = labels.new_zeros(0) if head.ids is None else head.ids
    rows = head.table[:0] if head.rows is None else head.rows
    return _Losses.apply(hidden, head.table, labels, ids, hidden @ rows.T)  # pyright: ignore[reportReturnType]


class _Losses(torch.autograd.Function):
    """Losses, and at once what their gradients are proportional to, a few targets at a time.

    So the logits of all targets, the largest array there would be, are never kept for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, labels: Tensor, ids: Tensor, logits: Tensor
    ) -> Tensor:
        """`logits`, [targets, trained], are in the place of those of the frozen rows `ids`."""
        losses = hidden.new_empty(len(labels), dtype=torch.float32)
        learns = ctx.needs_input_grad[0]
        slopes = [torch.empty_like(one) if learns else one[:0] for one in (hidden, logits)]
        for start in range(0, len(labels), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            label = labels[part, None]
            scores = (hidden[part] @ table.T).float()
            scores[:, ids] = logits[part].float()
            scores = scores.log_softmax(-1)
            losses[part] = -scores.gather(1, label)[:, 0]
            if learns:
                slope = scores.exp_().scatter_add_(1, label, scores.new_full(label.shape, -1.0))
                slopes[1][part] = slope[:, ids].to(logits.dtype)
                slope[:, ids] = 0.0
                slopes[0][part] = slope.to(table.dtype) @ table
        ctx.save_for_backward(*slopes)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the slopes."""
        of_hidden, of_logits = (slope * grads[0][:, None].to(slope.dtype) for slope in ctx.saved_tensors)
        return of_hidden, None, None, None, of_logits
