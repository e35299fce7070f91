"""Seeded sampling without SGLang's kernels, so that `sampling_seed` can be tested on a CPU.

SGLang reads the seeds of requests only with ``--enable-deterministic-inference``, which asks for an
accelerator. Here the flag means just that: seeds are honoured. It is not SGLang's deterministic inference:
results may depend on the batch, and need not equal those of a GPU.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FLAG", "allow", "register", "without_batch_invariance"]

FLAG = "--enable-deterministic-inference"
_MASK = 0xFFFFFFFF
_kept: list[Any] = []


def register() -> None:
    """Register the one operator that seeded sampling wants from SGLang's kernels."""
    operators: Any = torch.library
    library = operators.Library("sgl_kernel", "FRAGMENT")
    library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    library.impl("murmur_hash32_cpu", murmur3, "CPU")
    operators.register_fake("sgl_kernel::murmur_hash32_cpu", _shape, lib=library)
    _kept.append(library)  # its operators go with it


def allow() -> None:
    """Let torch's own attention through the argument check of the flag, by SGLang's list of extensions."""
    # The compiled sampler hangs without triton.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])


def without_batch_invariance() -> None:
    """Skip the batch-invariant kernels, which need an accelerator."""
    operators: Any = importlib.import_module("sglang.srt.batch_invariant_ops")
    operators.enable_batch_invariant_mode = _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _shape(seed: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    return torch.empty((seed.shape[0], columns.shape[0]), dtype=torch.uint32, device=seed.device)


def murmur3(seed: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """MurmurHash3 x86_32 of seed (u64), position (u32) and column (u32).

    Shapes: [rows], [rows], [columns] to [rows, columns]. Source: Austin Appleby's MurmurHash3, public domain.
    """
    wide = seed.view(torch.int64) if seed.dtype == torch.uint64 else seed.to(torch.int64)
    rows = (wide & _MASK, (wide >> 32) & _MASK, positions.to(torch.int64) & _MASK)
    blocks = [*(row[:, None] for row in rows), (columns.to(torch.int64) & _MASK)[None, :]]
    state = torch.zeros(1, 1, dtype=torch.int64, device=seed.device)
    for block in blocks:
        state = state ^ ((_rotate((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK)
        state = (_rotate(state, 13) * 5 + 0xE6546B64) & _MASK
    state = state ^ 16  # bytes hashed
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return (state ^ (state >> 16)).to(torch.uint32)


def _rotate(value: Tensor, bits: int) -> Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
