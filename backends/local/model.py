"""The forward pass of Llama, Qwen2 and Qwen3 over a flat batch, in plain torch and floating-point numbers.

A layer has few operators, since in a small model starting one takes about as long as its computation:

* the weights of a normalisation are multiplied into the matrix that follows it;
* rows of queries and keys are put in the order in which a rotation is one product of complex numbers;
* matrices with the same input are one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F

from pasta_async.backends.local.batch import Entry, Floats, new_tokens
from pasta_async.backends.local.cache import kv_shape, mapped
from pasta_async.backends.local.checkpoint import ModelConfig, Read
from pasta_async.backends.local.conversion import (
    layer_product,
    norm_scale,
    qk_norm,
    row_chunks,
)
from pasta_async.backends.local.int8 import PRODUCTS
from pasta_async.backends.options import DType

Linear = Callable[[torch.Tensor], torch.Tensor]
"""`y = x W^T + b`, from `[rows, in]` to `[rows, out]`, both of the model's type."""

_FEW_ROWS = 8  # the row count that the packed layout is chosen for

_lengths: Callable[..., torch.Tensor] = getattr(torch.linalg, "vector_norm")  # noqa: B009 (it has no types)


class _NewRows(NamedTuple):
    """The rows of one sequence's new tokens, and the tokens that they see."""

    rows: slice  # of the batch
    seen: torch.Tensor  # int64 `[tokens]`: the slot of each token up to the last new one
    mask: torch.Tensor | None  # bool `[rows, tokens]`, True where a row may look; None for a single row


class CausalLM:
    """A decoder-only model. One call computes new tokens of many sequences at once.

    Args:
        config: The model's shape.
        read: Gives its tensors on the device, asked for one after another, so that the model is not in memory
            twice.
        positions: Rotary tables are made for this many.
        dtype: Type of weights and activations.
    """

    def __init__(self, config: ModelConfig, read: Read, positions: int, dtype: DType) -> None:
        weights: torch.dtype = getattr(torch, dtype)
        self._config = config
        self._layers = [_Layer(config, read, f"model.layers.{i}.", weights) for i in range(config.layers)]
        table = read("model.embed_tokens.weight")
        head = table if config.tied else read("lm_head.weight")
        self._head = linear(weights, [head], [], norm_scale(read("model.norm.weight")))
        self._embedding = table.to(weights)
        device = table.device
        rotations = torch.as_tensor(config.rotations(positions), device=device)
        self._rotation = torch.view_as_complex(rotations)[:, None]  # [positions, 1, head_dim / 2]
        # The norm's epsilon as a length: sqrt(|x|^2 + hidden * eps) is hypot(|x|, this).
        self._epsilon = torch.tensor(math.sqrt(config.hidden * config.norm_eps), device=device)
        self._kv: tuple[torch.Tensor, ...] = ()  # of each layer

    def clear(self, slots: int) -> None:
        """Forget keys and values; there is room for those of so many tokens."""
        device, dtype = self._embedding.device, self._embedding.dtype
        shape = kv_shape(self._config, slots)
        self._kv = ()  # before the new ones are made: there may be no memory for both
        if device.type == "cpu":
            memory = mapped(math.prod(shape) * dtype.itemsize)
            self._kv = torch.frombuffer(memory, dtype=dtype).view(shape).unbind()
        else:
            self._kv = torch.zeros(shape, device=device, dtype=dtype).unbind()

    @torch.inference_mode()
    def forward(self, entries: Sequence[Entry]) -> Floats:
        """Compute keys and values of the entries' tokens, and keep them.

        Returns logits, float32 `[entries, vocabulary]`, of the last token of each entry.
        """
        device = self._embedding.device
        ids, positions, slots = (torch.as_tensor(array, device=device) for array in new_tokens(entries))
        sequences = _new_rows(entries, device)
        x = self._embedding.index_select(0, ids)  # [rows, hidden]
        rotation = self._rotation.index_select(0, positions)  # [rows, 1, head_dim / 2]
        for layer, kv in zip(self._layers, self._kv, strict=True):
            x.add_(layer.attention(_normalised(x, self._epsilon), rotation, slots, sequences, kv))
            x.add_(layer.feed_forward(_normalised(x, self._epsilon)))
        x = x[[sequence.rows.stop - 1 for sequence in sequences]]
        return self._head(_normalised(x, self._epsilon)).float().cpu().numpy()


def _new_rows(entries: Sequence[Entry], device: torch.device) -> list[_NewRows]:
    """The rows of each entry: each sees all tokens before its own, and that."""
    sequences: list[_NewRows] = []
    end = 0
    for entry in entries:
        seen = torch.as_tensor(entry.slots, device=device)
        mask = None
        if entry.count > 1:
            mask = torch.ones(entry.count, len(seen), dtype=torch.bool, device=device).tril(entry.start)
        sequences.append(_NewRows(slice(end, end + entry.count), seen, mask))
        end += entry.count
    return sequences


class _Layer:
    """Attention and feed-forward of normalised states, `[rows, hidden]`; results are of that shape."""

    def __init__(self, config: ModelConfig, read: Read, prefix: str, dtype: torch.dtype) -> None:
        c = config
        self._config = config
        self._qkv, self._out, self._gate_up, self._down = (
            linear(dtype, *layer_product(c, read, prefix, name)) for name in PRODUCTS
        )
        self._qk_norm = qk_norm(c, read, f"{prefix}self_attn.").to(dtype) if c.qk_norm else None

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's second half: the change of the states."""
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(F.silu(gate).mul_(up))

    def attention(
        self,
        x: torch.Tensor,
        rotation: torch.Tensor,
        slots: torch.Tensor,
        sequences: Sequence[_NewRows],
        kv: torch.Tensor,
    ) -> torch.Tensor:
        """The layer's first half: the change of the states.

        Keys and values of the rows go into their `slots` of `kv`, `[2 * kv_heads, slots, head_dim]`.
        """
        c = self._config
        rows = len(x)
        qkv = self._qkv(x).view(rows, c.heads + 2 * c.kv_heads, c.head_dim)
        qk = qkv[:, : c.heads + c.kv_heads]
        if self._qk_norm is not None:
            qk.copy_(F.rms_norm(qk, (c.head_dim,), None, c.norm_eps) * self._qk_norm)
        _rotate(qk, rotation)
        # Keys and values go into the cache first: queries find those of their own tokens there as well.
        heads = qkv.transpose(0, 1)  # [heads, rows, head_dim]
        kv.index_copy_(1, slots, heads[c.heads :])
        # Each sequence attends by itself: beside the weights, which all share, its keys are little to read.
        out = [_attend(heads[: c.heads, sequence.rows], kv, sequence) for sequence in sequences]
        return self._out(torch.cat(out))


def _attend(queries: torch.Tensor, kv: torch.Tensor, sequence: _NewRows) -> torch.Tensor:
    """Attention of queries `[heads, rows, head_dim]` in a layer with the cache `kv`.

    Returns `[rows, heads * head_dim]`.
    """
    keys, values = kv.index_select(1, sequence.seen)[None].chunk(2, 1)
    attended = F.scaled_dot_product_attention(queries[None], keys, values, sequence.mask, enable_gqa=True)
    return attended[0].transpose(0, 1).flatten(1)


def _normalised(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
    """Rows of unit length: the norm's `sqrt(hidden)` and weights are in the matrix that follows."""
    exact = x.float()  # `x` itself, unless it is in half precision
    return (exact / torch.hypot(_lengths(exact, 2, -1, True), epsilon)).to(x.dtype)


def _rotate(qk: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate `[rows, heads, head_dim]`, components in `rotary_order`, in place."""
    exact = qk.float()  # `qk` itself, unless it is in half precision
    torch.view_as_complex(exact.view(*exact.shape[:-1], -1, 2)).mul_(rotation)
    if exact is not qk:
        qk.copy_(exact)


# Products ---------------------------------------------------------------------------------------------------


def linear(
    dtype: torch.dtype,
    matrices: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    scale: torch.Tensor | None = None,
) -> Linear:
    """The product with matrices that have the same input.

    Args:
        dtype: Type of the weights.
        matrices: `[out, in]` each, of any floating type; the results stand side by side.
        biases: `[out]` each; none, or one for each matrix.
        scale: `[in]`, multiplied into the columns.
    """
    bias = torch.cat(tuple(biases)).to(dtype) if biases else None
    weight = _converted(matrices, dtype, scale)
    if weight.is_cpu and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return _packed(weight, bias)
    return partial(F.linear, weight=weight, bias=bias)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """float32 on a CPU, in oneDNN's layout; else a product of 2 to 16 rows packs the weights each time."""
    ops = cast("Any", torch.ops.mkldnn)
    packed = ops._reorder_linear_weight(weight, _FEW_ROWS)
    product = ops._linear_pointwise.default
    return lambda x: product(x, packed, bias, "none", [], "")


def _converted(
    matrices: Sequence[torch.Tensor], dtype: torch.dtype, scale: torch.Tensor | None
) -> torch.Tensor:
    """The matrices as one, `[sum of out, in]`, with `scale` multiplied into the columns."""
    if scale is None and len(matrices) == 1:
        return matrices[0].to(dtype)
    result = matrices[0].new_empty(sum(map(len, matrices)), matrices[0].shape[1], dtype=dtype)
    for rows, exact in row_chunks(matrices, scale):
        result[rows] = exact
    return result
