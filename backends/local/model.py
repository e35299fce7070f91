"""The forward pass of Llama, Qwen2 and Qwen3 over a flat batch, in plain torch.

Few operators for each layer, for at the size of a small model each costs about as much as it computes:

* the weights of a normalisation are multiplied into the matrix that follows it;
* rows of queries and keys are put in the order in which a rotation is one product of complex numbers;
* matrices with the same input are one matrix.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from pasta_async.backends.local.cache import RUN
from pasta_async.backends.local.linear import Basis, Embedding, linear, pad_rows, storage_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.backends.local.batch import Batch, Block, OwnPart
    from pasta_async.backends.local.cache import KVCache
    from pasta_async.backends.local.checkpoint import ModelConfig
    from pasta_async.backends.local.linear import DType

    Read = Callable[[str], torch.Tensor]
    KeysValues = tuple[torch.Tensor, torch.Tensor]

__all__ = ["CausalLM"]

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_lengths: Callable[..., torch.Tensor] = getattr(torch.linalg, "vector_norm")  # noqa: B009 (it has no types)


class CausalLM:
    """A decoder-only model. One call computes new tokens of many sequences at once.

    Args:
        config: Its shape.
        read: Gives a tensor, of any floating type, for its Hugging Face name; asked for one after another, so
            that the model is not in memory twice.
        positions: Rotary tables are made for this many.
        dtype: The number format to compute in.
    """

    def __init__(self, config: ModelConfig, read: Read, positions: int, dtype: DType) -> None:
        self.config = config
        self._dtype: DType = dtype
        basis = Basis(config.hidden) if dtype == "int8" else None
        self._layers = [
            _Layer(config, read, f"model.layers.{i}.", dtype, basis) for i in range(config.layers)
        ]
        table = read("model.embed_tokens.weight")
        head = table if config.tied else read("lm_head.weight")
        self._head = linear([head], [], dtype, _norm_scale(read("model.norm.weight")), basis)
        self._embedding = Embedding(table, dtype, basis)
        self._rotation = _rotations(config, positions, table.device)
        self._epsilon = _epsilon(config, table.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Compute keys and values of the batch's tokens.

        Returns logits, `[len(batch.last), vocabulary]`, of the type that the number format computes in. Row i
        belongs to the i-th of `batch.last`, a row of the batch.
        """
        ids, positions = batch.ids, batch.positions
        if (padded := pad_rows(batch.rows, self._dtype)) > batch.rows:
            ids, positions = (F.pad(rows, (0, padded - batch.rows)) for rows in (ids, positions))
        x = self._embedding(ids)  # [padded rows, hidden]
        rotation = self._rotation.index_select(0, positions)  # [padded rows, 1, head_dim / 2]
        seen = zip(*(_seen(block, cache) for block in batch.blocks), strict=True)
        for layer, kv, keys_values in zip(self._layers, cache.layers, seen, strict=True):
            layer.forward(x, rotation, self._epsilon, batch, kv, keys_values)
        if len(batch.last) < padded:
            x = x.index_select(0, batch.last)
        return self._head(_normalised(x, self._epsilon))


class _Layer:
    """Attention and feed-forward, each on a normalised input and added to it."""

    def __init__(
        self, config: ModelConfig, read: Read, prefix: str, dtype: DType, basis: Basis | None
    ) -> None:
        c = self.config = config
        norm1 = _norm_scale(read(prefix + "input_layernorm.weight"))
        norm2 = _norm_scale(read(prefix + "post_attention_layernorm.weight"))
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [read(f"{attention}{name}_proj.weight") for name in "qkv"]
        biases = [read(f"{attention}{name}_proj.bias") for name in "qkv"] if c.qkv_bias else []
        for parts in (qkv, biases):
            parts[:2] = [_rotary_order(part, c.head_dim) for part in parts[:2]]
        self._qkv = linear(qkv, biases, dtype, norm1, basis)
        gate_up = _taken(read, [mlp + "gate_proj", mlp + "up_proj"], c.mlp_bias)
        self._gate_up = linear(*gate_up, dtype, norm2, basis)

        def write(name: str) -> torch.Tensor:
            return basis.outputs(read(name)) if basis else read(name)

        self._out = linear(*_taken(write, [attention + "o_proj"], c.out_bias), dtype)
        self._down = linear(*_taken(write, [mlp + "down_proj"], c.mlp_bias), dtype)
        self._qk_norm: torch.Tensor | None = None
        if c.qk_norm:  # [heads + kv_heads, head_dim]: a weight for each head of queries and keys
            q, k = (_rotary_order(read(f"{attention}{n}_norm.weight"), c.head_dim) for n in "qk")
            self._qk_norm = torch.stack([q] * c.heads + [k] * c.kv_heads).to(storage_dtype(dtype))

    def forward(
        self,
        x: torch.Tensor,
        rotation: torch.Tensor,
        epsilon: torch.Tensor,
        batch: Batch,
        kv: torch.Tensor,
        seen: Sequence[_Seen],
    ) -> None:
        """Change `x`, `[padded rows, hidden]`, in place, and put keys and values into `kv`; see `_seen`."""
        x.add_(self._attention(_normalised(x, epsilon), rotation, batch, kv, seen))
        gate, up = self._gate_up(_normalised(x, epsilon)).chunk(2, -1)
        x.add_(self._down(F.silu(gate).mul_(up)))

    def _attention(
        self,
        x: torch.Tensor,
        rotation: torch.Tensor,
        batch: Batch,
        kv: torch.Tensor,
        seen: Sequence[_Seen],
    ) -> torch.Tensor:
        c, rows, padded = self.config, batch.rows, x.shape[0]
        qkv = self._qkv(x).view(padded, c.heads + 2 * c.kv_heads, c.head_dim)
        qk = qkv[:, : c.heads + c.kv_heads]
        if self._qk_norm is not None:
            qk.copy_(F.rms_norm(qk, (c.head_dim,), None, c.norm_eps) * self._qk_norm)
        _rotate(qk, rotation)
        kv.index_copy_(0, batch.slots, qkv[:rows, c.heads :])
        queries = qkv[:, : c.heads]
        if rows == padded and len(seen) == 1 and isinstance(batch.blocks[0].rows, slice):  # all, in order
            return self._out(_attend(queries, kv, seen[0], batch.blocks[0]))
        out = x.new_zeros(padded, c.heads * c.head_dim)
        for block, found in zip(batch.blocks, seen, strict=True):
            out[block.rows] = _attend(queries[block.rows], kv, found, block)
        return self._out(out)


class _Seen(NamedTuple):
    """What a block attends to in one layer: keys and values `[groups, kv_heads, keys, head_dim]`."""

    shared: KeysValues | None
    """None where the slots do not stand together and have to be gathered."""
    own: KeysValues | None
    """Of `Block.own`, its rows as groups."""


def _seen(block: Block, cache: KVCache) -> Sequence[_Seen]:
    """A block's keys and values of each layer, as views of the cache that are made for all layers at once."""
    nothing = [None] * len(cache.layers)
    own = shared = nothing
    if isinstance(block.table, slice):
        shared = _views(cache.whole[:, None, block.table])
    if block.own:
        layers, slots, *rest = cache.whole.shape
        runs = cache.whole[:, : slots // RUN * RUN].view(layers, -1, RUN, *rest)
        own = _views(runs[:, block.own.rows, : block.own.columns])
    return [*map(_Seen, shared, own)]


def _views(seen: torch.Tensor) -> Sequence[KeysValues]:
    """From `[layers, groups, keys, 2 * kv_heads, head_dim]`, for each layer."""
    keys, values = seen.transpose(2, 3).chunk(2, 2)
    return [*zip(keys.unbind(), values.unbind(), strict=True)]


def _gather(kv: torch.Tensor, block: Block) -> KeysValues:
    """A layer's keys and values of a block, copied."""
    seen = kv[block.table].view(block.groups, -1, *kv.shape[1:]).transpose(1, 2)
    keys, values = seen.chunk(2, 1)
    return keys, values


def _attend(q: torch.Tensor, kv: torch.Tensor, seen: _Seen, block: Block) -> torch.Tensor:
    """Attention of a block's queries `[groups * queries, heads, head_dim]` in a layer with the cache `kv`.

    Returns `[groups * queries, heads * head_dim]`.
    """
    keys, values = seen.shared or _gather(kv, block)
    groups, queries, kv_heads, head_dim = block.groups, block.queries, keys.shape[1], q.shape[-1]
    each = q
    # The queries that share a key-value head stand below each other: one product serves them all.
    if queries > 1:
        q = q.reshape(groups, queries, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(groups, kv_heads, -1, head_dim)
    if block.own and seen.own:
        out, weight = _flash(q, keys, values, attn_mask=block.mask)
        out = out.view(kv_heads, -1, queries, head_dim).permute(2, 0, 1, 3)
        weight = weight.view(kv_heads, -1, queries).permute(2, 0, 1)
        return _joined(out, weight, each.reshape(out.shape), seen.own, block.own).reshape(queries, -1)
    out = F.scaled_dot_product_attention(q, keys, values, block.mask)
    if queries > 1:
        out = out.view(groups, kv_heads, -1, queries, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(groups * queries, -1)


def _joined(
    shared: torch.Tensor, weight: torch.Tensor, q: torch.Tensor, seen: KeysValues, own: OwnPart
) -> torch.Tensor:
    """Attention over two sets of keys from that over each (as in FlashAttention, arXiv 2205.14135).

    Args:
        shared: The first, `[queries, kv_heads, heads per key-value head, head_dim]`.
        weight: Logarithm of the sum of its exponentials, without the last dimension.
        q: The queries, shaped as `shared`.
        seen: Keys and values of the second.
        own: Its layout.
    """
    out, own_weight = _flash(q.index_select(0, own.query_of_row), *seen, attn_mask=own.mask)
    own_weight = own_weight.index_select(0, own.row_of_query)
    share = (own_weight - weight).add_(own.absent).sigmoid_().to(shared.dtype)
    return torch.lerp(shared, out.index_select(0, own.row_of_query), share[..., None])


def _normalised(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
    """Rows of unit length: the norm's `sqrt(hidden)` and weights are in the matrix that follows."""
    exact = x.float()  # itself, but for half precision
    return (exact / torch.hypot(_lengths(exact, 2, -1, True), epsilon)).to(x.dtype)


def _epsilon(config: ModelConfig, device: torch.device) -> torch.Tensor:
    """The norm's epsilon as a length: `sqrt(|x|^2 + hidden * eps)` is `hypot(|x|, this)`."""
    return torch.tensor(math.sqrt(config.hidden * config.norm_eps), device=device)


def _norm_scale(norm: torch.Tensor) -> torch.Tensor:
    """What a norm's weights `[hidden]` multiply the columns of the matrix behind it with."""
    return norm.float() * math.sqrt(len(norm))


def _taken(read: Read, names: list[str], bias: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Matrices, and their biases if they have any."""
    return [read(name + ".weight") for name in names], [read(name + ".bias") for name in names if bias]


def _rotary_order(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows `[heads * head_dim, ...]` with those that are rotated together next to each other in each head."""
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _rotations(config: ModelConfig, positions: int, device: torch.device) -> torch.Tensor:
    """`exp(i * position * frequency)`, complex64 `[positions, 1, head_dim / 2]`."""
    frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(device)


def _rotate(qk: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate `[rows, heads, head_dim]`, components in `_rotary_order`, in place."""
    exact = qk if qk.dtype == torch.float32 else qk.float()
    torch.view_as_complex(exact.view(*exact.shape[:-1], -1, 2)).mul_(rotation)
    if exact is not qk:
        qk.copy_(exact)
