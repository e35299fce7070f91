"""Whether a model fits in memory: what it needs, and what the system and its control groups leave."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from pasta_async.backends.local.checkpoint import Checkpoint, ModelConfig, expected_shapes
from pasta_async.backends.local.linear import DType, kv_dtype, storage_dtype
from pasta_async.errors import UnsupportedModelError

_CACHE_BYTES = 2**30
_MOST_SLOTS = 32768
_FEWEST_SLOTS = 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_KEPT = 2**25  # glibc takes no larger threshold


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next one, instead of giving it to the system.

    Blocks of up to 32 MiB are kept (glibc: mallopt(3)), larger ones never are. Elsewhere this does nothing.
    """
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def affordable_slots(checkpoint: Checkpoint, dtype: DType, wanted: int | None, device: torch.device) -> int:
    """How many KV slots to make, so that they fit in memory with the weights and what loading takes besides.

    Args:
        checkpoint: Of the model.
        dtype: The number format that it will be computed in.
        wanted: So many are asked for; None: what a gibibyte holds, at most 32768, but in a small memory no
            more than half of what the weights leave.
        device: Where they are to be.

    Raises:
        UnsupportedModelError: Those wanted do not fit, or not even a few.
    """
    config = checkpoint.config
    weights, loading = _weight_bytes(config, dtype)
    token = 2 * config.layers * config.kv_heads * config.head_dim * kv_dtype(dtype, device).itemsize
    slots = wanted or max(min(_CACHE_BYTES // token, _MOST_SLOTS), 256)
    if (room := available_memory(device)) is None:
        return slots
    if wanted is None:
        slots = min(slots, max((room - weights - loading) // 2 // token, _FEWEST_SLOTS))
    if (needed := weights + loading + slots * token) > room:
        raise UnsupportedModelError(
            f"{checkpoint.path} does not fit in memory: its weights take {weights / 1e9:.1f} GB as {dtype}, "
            f"loading them {loading / 1e9:.1f} GB more, the keys and values of {slots} tokens "
            f"{slots * token / 1e9:.1f} GB; that is {needed / 1e9:.1f} GB, and {room / 1e9:.1f} GB are free"
        )
    return slots


def _weight_bytes(config: ModelConfig, dtype: DType) -> tuple[int, int]:
    """Bytes of the weights, and of the copies of the largest matrix while it is converted."""
    matrices = [math.prod(shape) for shape in expected_shapes(config).values() if len(shape) == 2]
    if config.tied:  # the head is a matrix of its own, with the weights of the norm before it
        matrices.append(config.vocab_size * config.hidden)
    width = 1 if dtype == "int8" else storage_dtype(dtype).itemsize
    return width * sum(matrices), 8 * max(*matrices, 2 * config.intermediate * config.hidden)


def available_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Bytes that this process can still take without pushing others out; None where nobody says.

    Args:
        device: Where the memory is to be.
        root: Of the file system that has `proc` and `sys`.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    return min([*_system_memory(root), *_group_rooms(root)], default=None)


def _system_memory(root: Path) -> Iterator[int]:
    try:
        yield _table(root / "proc/meminfo")["MemAvailable:"] * 1024
    except (OSError, KeyError):
        with suppress(AttributeError, OSError, ValueError):  # all there is, rather than what is free
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_rooms(root: Path) -> Iterator[int]:
    """What each control group above this process leaves; pages that only cache files do not count as used."""
    mounted, lines = root / "sys/fs/cgroup", list[str]()
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # version 2
            yield from _rooms(mounted, name, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _rooms(mounted / "memory", name, *files)


def _rooms(top: Path, name: str, limit: str, usage: str, cached: str) -> Iterator[int]:
    group = top / name.strip("/")
    for folder in (group, *group.parents):
        # In a container the group may stand at the top, under another name.
        with suppress(OSError, ValueError):  # no limit, or none of this process's business
            room = int((folder / limit).read_text()) - int((folder / usage).read_text())
            yield room + _table(folder / "memory.stat").get(cached, 0)
        if folder == top:
            return


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
