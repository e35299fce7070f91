"""Weights as 8-bit integers, in the basis in which that loses little: the arrays that the kernels read.

They are made of a checkpoint's tensors once (`stored`). Here is also what every number format needs of a
tensor: its order, and its norm's factors.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pasta_async.backends.local.checkpoint import ModelConfig, Read
from pasta_async.backends.local.int8 import OUTPUT_GROUP, PANEL, PRODUCT_ARRAYS, PRODUCTS, Array

Part: TypeAlias = list[tuple[str, Array]]  # arrays with their names

MOST_LAYERS = 4
"""Layers that are converted at the same time: each takes memory for its weights in float32."""

_setting_threads = threading.Lock()

_COLUMNS_AT_ONCE = 64  # of a matrix whose basis is changed
_CONVERTED_AT_ONCE = 2**15 - 1  # weights: they stay in the processor's cache, and in one thread
_QUANTISED_AT_ONCE = 2**17  # weights, in one thread anyway


class Basis:
    """Another basis for the hidden state, in which no component is far larger than the others.

    A few components of a language model's hidden state are many times larger than the others, which leaves
    these few of the 8 bits. Layers do not care about the basis, so the matrices that read and write the state
    are multiplied by an orthogonal one as they are loaded, and a step does no more than before (QuaRot, arXiv
    2404.00456). The matrix is the Kronecker product of a discrete cosine transform and a Hadamard matrix of
    at most 64.
    """

    def __init__(self, hidden: int) -> None:
        fine = math.gcd(hidden, 64)
        self._hadamard = torch.ones(1, 1)
        while len(self._hadamard) < fine:
            self._hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), self._hadamard)
        self._hadamard /= math.sqrt(fine)
        coarse = hidden // fine
        index = torch.arange(coarse, dtype=torch.float64)
        self._cosine = torch.cos(math.pi / coarse * (index + 0.5) * index[:, None]) * math.sqrt(2 / coarse)
        self._cosine[0] /= math.sqrt(2)
        self._cosine = self._cosine.float()

    def inputs(self, rows: torch.Tensor) -> torch.Tensor:
        """A matrix `[out, hidden]`, or a table of hidden states, for states in this basis; float32."""
        shaped = rows.float().view(len(rows), len(self._cosine), len(self._hadamard))
        return (self._cosine.T @ (shaped @ self._hadamard)).view(rows.shape)

    def outputs(self, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix `[hidden, in]`, or a bias `[hidden]`, that writes into this basis; float32."""
        columns = matrix.view(len(matrix), -1)
        written = torch.empty_like(columns, dtype=torch.float32)
        for first in range(0, columns.shape[1], _COLUMNS_AT_ONCE):
            part = slice(first, first + _COLUMNS_AT_ONCE)
            written[:, part] = self.inputs(columns[:, part].float().T.contiguous()).T
        return written.view(matrix.shape)


def row_chunks(
    matrices: Sequence[torch.Tensor], scale: torch.Tensor | None, weights: int = _CONVERTED_AT_ONCE
) -> Generator[tuple[slice, torch.Tensor]]:
    """The rows of all matrices in order, a few at a time in float32, with their numbers."""
    start = 0
    for matrix in matrices:
        count = max(weights // matrix.shape[1], 1)
        for first in range(0, len(matrix), count):
            rows = matrix[first : first + count].float()
            yield slice(start, start + len(rows)), rows if scale is None else rows * scale
            start += len(rows)


def quantised(
    matrices: Sequence[torch.Tensor], scale: torch.Tensor | None, basis: Basis | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices as one, int8 `[sum of out, in]`, and each row's step size, float32 `[sum of out, 1]`."""
    rounded = torch.empty(sum(map(len, matrices)), matrices[0].shape[1], dtype=torch.int8)
    steps = torch.empty(len(rounded), 1)
    for rows, part in row_chunks(matrices, scale, _QUANTISED_AT_ONCE):
        exact = part if basis is None else basis.inputs(part)
        steps[rows] = exact.abs().amax(1, keepdim=True).clamp_min_(1e-30) / 127
        rounded[rows] = (exact / steps[rows]).round_()
    return rounded, steps


# What every number format needs -----------------------------------------------------------------------------


class Product(NamedTuple):
    """Matrices that have the same input."""

    matrices: list[torch.Tensor]
    """`[out, in]` each; queries and keys have their rows in `rotary_order`."""
    biases: list[torch.Tensor]
    """`[out]` each; none, or one for each matrix."""
    scale: torch.Tensor | None
    """Factors `[in]` of the norm in front; None for a product that writes into the hidden states."""


def layer_product(config: ModelConfig, read: Read, prefix: str, name: str) -> Product:
    """One of a layer's `PRODUCTS`, of the tensors whose names begin with `prefix`."""
    parts, has_bias, norm = {
        "qkv": ([f"self_attn.{part}_proj" for part in "qkv"], config.qkv_bias, "input_layernorm"),
        "out": (["self_attn.o_proj"], config.out_bias, None),
        "gate_up": (["mlp.gate_proj", "mlp.up_proj"], config.mlp_bias, "post_attention_layernorm"),
        "down": (["mlp.down_proj"], config.mlp_bias, None),
    }[name]
    matrices = [read(f"{prefix}{part}.weight") for part in parts]
    biases = [read(f"{prefix}{part}.bias") for part in parts if has_bias]
    if name == "qkv":
        for tensors in (matrices, biases):  # queries and keys are rotated, values are not
            tensors[:2] = [rotary_order(tensor, config.head_dim) for tensor in tensors[:2]]
    return Product(matrices, biases, norm_scale(read(f"{prefix}{norm}.weight")) if norm else None)


def qk_norm(config: ModelConfig, read: Read, attention: str) -> torch.Tensor:
    """The norm's weights for each head of queries and keys: float32 `[heads + kv_heads, head_dim]`.

    The names of the layer's attention begin with `attention`.
    """
    q, k = (rotary_order(read(f"{attention}{part}_norm.weight").float(), config.head_dim) for part in "qk")
    return torch.stack([q] * config.heads + [k] * config.kv_heads)


def norm_scale(norm: torch.Tensor) -> torch.Tensor:
    """Factors `[hidden]` for the columns of the matrix behind a norm, by the norm's weights `[hidden]`."""
    return norm.float() * math.sqrt(len(norm))


def rotary_order(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows `[heads * head_dim, ...]` with those that are rotated together next to each other in each head."""
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def use_threads(count: int) -> None:
    """Set the number of CPU threads for this thread's products.

    torch has a number for each thread that has computed, and one for new threads. Setting it here changes
    both, so a helper thread puts the second back.
    """
    with _setting_threads:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        restorer = threading.Thread(target=torch.set_num_threads, args=(before,))
        restorer.start()
        restorer.join()


# The kernels' arrays ----------------------------------------------------------------------------------------


def int8_arrays(config: ModelConfig, read: Read, threads: int) -> Iterator[tuple[str, Array]]:
    """Make the arrays of a model, a layer in each thread.

    Args:
        config: The model's shape.
        read: Gives its tensors; it is called in several threads.
        threads: Layers that are made at the same time, each with one of torch's threads: torch's threads wait
            for each other actively, and slow down all others where there are not enough cores.
    """
    basis = Basis(config.hidden)
    makers: list[Callable[[], Part]] = [partial(_embedding, read, basis)]
    makers += [partial(_layer, config, read, i, basis) for i in range(config.layers)]
    makers.append(partial(_head, config, read, basis))
    pending: deque[Future[Part]] = deque()
    with ThreadPoolExecutor(threads, initializer=use_threads, initargs=(1,)) as pool:
        try:
            for make in makers:
                pending.append(pool.submit(make))
                if len(pending) > threads:  # layers that wait to be taken need memory, too
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:  # after an error nobody wants the rest
            pool.shutdown(cancel_futures=True)


@torch.inference_mode()
def _embedding(read: Read, basis: Basis) -> Part:
    rounded, scales = quantised([read("model.embed_tokens.weight")], None, basis)
    return [("embedding.weights", rounded.numpy()), ("embedding.scales", scales.numpy())]


@torch.inference_mode()
def _head(config: ModelConfig, read: Read, basis: Basis) -> Part:
    table = read("model.embed_tokens.weight" if config.tied else "lm_head.weight")
    return _product("head", [table], [], norm_scale(read("model.norm.weight")), basis)


@torch.inference_mode()
def _layer(config: ModelConfig, read: Read, number: int, basis: Basis) -> Part:
    prefix = f"model.layers.{number}."
    arrays: Part = []
    for name in PRODUCTS:
        matrices, biases, scale = layer_product(config, read, prefix, name)
        if scale is None:  # what it writes into the hidden states is in the new basis, as what others read
            matrices, biases = ([*map(basis.outputs, tensors)] for tensors in (matrices, biases))
        arrays += _product(f"{number}.{name}", matrices, biases, scale, None if scale is None else basis)
    if config.qk_norm:
        arrays.append((f"{number}.qk_norm", qk_norm(config, read, f"{prefix}self_attn.").numpy()))
    return arrays


def _product(
    name: str,
    matrices: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    scale: torch.Tensor | None,
    basis: Basis | None,
) -> Part:
    """The arrays of a product with matrices that have the same input; `basis` is that of the input."""
    rounded, scales = quantised(matrices, scale, basis)
    bias = torch.cat(tuple(biases)).float().numpy() if biases else np.zeros(0)
    weights = _padded(rounded.numpy(), np.int8)
    fours = weights.view(np.int32)  # four inputs of an output, as one instruction takes them
    packed = fours.reshape(-1, PANEL, fours.shape[1]).swapaxes(1, 2)
    arrays = (
        np.ascontiguousarray(packed),
        _padded(scales[:, 0].numpy(), np.float32),
        weights.sum(1, dtype=np.int32),
        _padded(bias, np.float32, len(weights)),
    )
    return [(f"{name}.{array}", values) for array, values in zip(PRODUCT_ARRAYS, arrays, strict=True)]


def _padded(array: Array, dtype: Any, size: int | None = None) -> Array:
    """The array with zeros behind it, up to whole groups."""
    padded = OUTPUT_GROUP * math.ceil((size or len(array)) / OUTPUT_GROUP)
    if len(array) == padded:  # no copy: the largest is a vocabulary's
        return array.astype(dtype, copy=False)
    result = np.zeros((padded, *array.shape[1:]), dtype)
    result[: len(array)] = array
    return result
