"""The forward pass of Llama, Qwen2 and Qwen3 over a flat batch, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pasta_async.backends.local.batch import Batch, Block
    from pasta_async.backends.local.cache import KVCache
    from pasta_async.backends.local.checkpoint import ModelConfig

__all__ = ["CausalLM", "Linear"]

_FEW_ROWS = 8  # the row count that the packed layout is chosen for


class CausalLM:
    """A decoder-only model. One call computes new tokens of many sequences at once.

    Args:
        config: Its shape.
        weights: Tensors by their Hugging Face names; taken apart, not kept.
        positions: Rotary tables are made for this many.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], positions: int) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = Linear(self._embedding if config.tied else weights["lm_head.weight"])
        self._norm = weights["model.norm.weight"]
        self._layers = [_Layer(config, weights, f"model.layers.{i}.") for i in range(config.layers)]
        self._cos, self._sin = _rotary_tables(config, positions, self._embedding)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Compute keys and values of the batch's tokens, and logits `[len(batch.last), vocabulary]`.

        Row i of the logits belongs to the i-th of `batch.last`, a row of the batch.
        """
        ids, positions = batch.ids, batch.positions
        if (padded := _pad_rows(batch.rows)) > batch.rows:
            ids, positions = (F.pad(rows, (0, padded - batch.rows)) for rows in (ids, positions))
        x = F.embedding(ids, self._embedding)  # [padded rows, hidden]
        cos, sin = self._cos[positions], self._sin[positions]  # [padded rows, 1, head_dim]
        for layer, kv in zip(self._layers, cache.layers, strict=True):
            x = layer.forward(x, cos, sin, batch, kv)
        x = F.rms_norm(x[batch.last], (self.config.hidden,), self._norm, self.config.norm_eps)
        return self._head(x)


class _Layer:
    """Attention and feed-forward, each on a normalised input and added to it."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], prefix: str) -> None:
        self.config = config
        self._norm1 = weights[prefix + "input_layernorm.weight"]
        self._norm2 = weights[prefix + "post_attention_layernorm.weight"]
        self._qkv = _fused(weights, prefix + "self_attn.", ("q_proj", "k_proj", "v_proj"))
        self._out = _fused(weights, prefix + "self_attn.", ("o_proj",))
        self._gate_up = _fused(weights, prefix + "mlp.", ("gate_proj", "up_proj"))
        self._down = _fused(weights, prefix + "mlp.", ("down_proj",))
        self._qk_norm: torch.Tensor | None = None
        if config.qk_norm:  # [heads + kv_heads, head_dim]: a weight for each head of queries and keys
            q, k = (weights[f"{prefix}self_attn.{name}_norm.weight"] for name in "qk")
            self._qk_norm = torch.stack([q] * config.heads + [k] * config.kv_heads)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Batch, kv: torch.Tensor
    ) -> torch.Tensor:
        width, eps = (self.config.hidden,), self.config.norm_eps
        x = x + self._attention(F.rms_norm(x, width, self._norm1, eps), cos, sin, batch, kv)
        gate, up = self._gate_up(F.rms_norm(x, width, self._norm2, eps)).chunk(2, -1)
        return x + self._down(F.silu(gate).mul_(up))

    def _attention(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Batch, kv: torch.Tensor
    ) -> torch.Tensor:
        c, rows, padded = self.config, batch.rows, x.shape[0]
        qkv = self._qkv(x).view(padded, c.heads + 2 * c.kv_heads, c.head_dim)
        place = qk = qkv[:, : c.heads + c.kv_heads]
        if self._qk_norm is not None:
            qk = F.rms_norm(qk, (c.head_dim,), None, c.norm_eps) * self._qk_norm
        torch.addcmul(qk * cos, qk.roll(c.head_dim // 2, -1), sin, out=place)
        kv.index_copy_(0, batch.slots, qkv[:rows, c.heads :])
        queries = qkv[:, : c.heads]
        if rows == padded and isinstance(batch.blocks[0].rows, slice):  # one answer: every row, in order
            return self._out(_attend(queries, kv, batch.blocks[0], c))
        out = x.new_zeros(padded, c.heads * c.head_dim)
        for block in batch.blocks:
            out[block.rows] = _attend(queries[block.rows], kv, block, c)
        return self._out(out)


def _attend(q: torch.Tensor, kv: torch.Tensor, block: Block, config: ModelConfig) -> torch.Tensor:
    """Attention of a block's queries `[groups * queries, heads, head_dim]` over its groups' slots.

    Returns `[groups * queries, heads * head_dim]`.
    """
    c, groups, queries = config, block.groups, block.queries
    gathered = kv.index_select(0, block.table).view(groups, -1, 2 * c.kv_heads, c.head_dim).transpose(1, 2)
    # The queries that share a key-value head stand below each other: one product serves them all.
    if queries > 1:
        q = q.reshape(groups, queries, c.kv_heads, -1, c.head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(groups, c.kv_heads, -1, c.head_dim)
    out = F.scaled_dot_product_attention(q, gathered[:, : c.kv_heads], gathered[:, c.kv_heads :], block.mask)
    if queries > 1:
        out = out.view(groups, c.kv_heads, -1, queries, c.head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(groups * queries, c.heads * c.head_dim)


def _fused(weights: Mapping[str, torch.Tensor], prefix: str, names: tuple[str, ...]) -> Linear:
    """Matrices with the same input as one product."""
    matrices = [weights[f"{prefix}{name}.weight"] for name in names]
    biases = [weights[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in weights]
    return Linear(torch.cat(matrices), torch.cat(biases) if biases else None)


def _rotary_tables(
    config: ModelConfig, positions: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines, and sines with the sign that rotating halves by `roll` needs: `[positions, 1, head_dim]`."""
    frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(like), torch.cat((-sin, sin), -1).to(like)


class Linear:
    """`y = x W^T + b` for `x` of `[rows, in]`.

    A decode step has as many rows as there are threads. On a CPU the usual product of 2 to 16 rows costs
    about twice that of one row, since it packs the weights anew each time; with oneDNN's packed weights 8
    rows cost little more than one (measured for 256 x 1408: 1.4 times). Where torch has no packed product
    (other devices and types), this is `torch.nn.functional.linear`.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._packed = _packed_product(weight)
        self._weight = (
            weight if self._packed is None else torch.ops.mkldnn._reorder_linear_weight(weight, _FEW_ROWS)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product, `[rows, out]`."""
        if self._packed is None:
            return F.linear(x, self._weight, self._bias)
        return self._packed(x, self._weight, self._bias, "none", [], "")


def _pad_rows(rows: int) -> int:
    """A row count to round up to: each new count costs oneDNN a few milliseconds once."""
    if rows <= _FEW_ROWS:
        return rows
    step = 8 if rows <= 64 else 32
    return -(-rows // step) * step


def _packed_product(weight: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    ops: Any = torch.ops.mkldnn
    usable = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    )
    if not usable or not hasattr(ops, "_reorder_linear_weight") or not hasattr(ops, "_linear_pointwise"):
        return None
    return ops._linear_pointwise
