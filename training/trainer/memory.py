"""How much memory a process will need, roughly, told before the first update."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from pasta_async.backends.local.checkpoint import ModelConfig
    from pasta_async.training.trainer.settings import TrainerSettings

__all__ = ["available_memory", "check_memory", "memory_needs"]


def memory_needs(
    shape: ModelConfig, vocabulary: int, settings: TrainerSettings, world: int, bytes_each: int
) -> dict[str, int]:
    """Bytes a process needs at its peak, by purpose: a rough count, good to about a third.

    Args:
        shape: Of the base model.
        vocabulary: Rows of the vocabulary with the tags.
        settings: Of the run.
        world: Processes that share the weights.
        bytes_each: Of a number in the computation.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate)
    outside = vocabulary * shape.hidden * (1 if shape.tied else 2)
    weights = shape.layers * layer + outside
    adapted = settings.lora_rank * shape.layers * (4 * shape.hidden + 2 * queries + 2 * keys)
    trained = adapted + settings.lora_rank * 3 * shape.layers * (shape.hidden + shape.intermediate)
    trained = trained or weights
    tokens = settings.row_tokens
    kept = tokens * (6 * shape.hidden + 3 * queries + 3 * keys + 4 * shape.intermediate) * bytes_each
    stored = shape.layers * tokens * shape.hidden * bytes_each + kept
    return {
        "weights, gradients and optimizer": (4 * weights + 12 * trained) // world,
        "unsharded layers": (2 * layer + outside) * (bytes_each + 4),
        "activations": stored if settings.recompute else shape.layers * kept,
        "logits": tokens * vocabulary * (bytes_each + 8),
    }


def available_memory(device: torch.device) -> int | None:
    """Bytes that a process can have on a device; None where that is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = dict(line.split(":") for line in lines)
    return int(values["MemAvailable"].split()[0]) * 1024 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def check_memory(needs: dict[str, int], available: int | None) -> None:
    """Refuse a run that cannot fit.

    Raises:
        InvalidRequestError: With what needs how much, and what makes it smaller.
    """
    total = sum(needs.values())
    if available is None or total <= available:
        return
    parts = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in needs.items())
    raise InvalidRequestError(
        f"a process needs about {total / 2**30:.1f} GiB and has {available / 2**30:.1f} ({parts}): use "
        "--recompute, fewer --row-tokens, --lora-rank, --dtype bfloat16 or more processes; "
        "--ignore-memory starts all the same"
    )
