"""What this machine has for a model: free memory, the KV slots that fit in it, and cores."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pasta_async.backends.local.checkpoint import Checkpoint, expected_shapes
from pasta_async.errors import UnsupportedModelError

_ROOT = Path("/")  # the folder with `proc` and `sys`
_CACHE_BYTES = 2**30
_MAX_SLOTS = 32768
_MIN_SLOTS = 1024
_M_TRIM_THRESHOLD = -1  # from glibc's malloc.h, as the next one
_M_MMAP_THRESHOLD = -3
_LARGEST_KEPT = 2**25  # glibc takes no larger threshold


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next one, instead of giving it to the system.

    Blocks of up to 32 MiB are kept (glibc: mallopt(3)), larger ones never are. Elsewhere this does nothing.
    """
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def affordable_slots(
    checkpoint: Checkpoint, *, weight_bytes: int, kv_bytes: int, wanted: int | None, device: str
) -> int:
    """The number of KV slots that fit in memory with the weights and the copies that loading makes.

    Args:
        checkpoint: The model.
        weight_bytes: Bytes of a weight.
        kv_bytes: Bytes of a number in the cache.
        wanted: The number that the user asks for; None: as many as a gibibyte holds, at most 32768, but in a
            small memory no more than half of what the weights leave.
        device: The device of weights and cache.

    Raises:
        UnsupportedModelError: Those wanted do not fit, or not even a few.
    """
    config = checkpoint.config
    matrices = [math.prod(shape) for shape in expected_shapes(config).values() if len(shape) == 2]
    if config.tied:  # the head is a second matrix: the weights of the norm before it are multiplied in
        matrices.append(config.vocab_size * config.hidden)
    weights = weight_bytes * sum(matrices)  # bytes, as `loading`, `room` and `needed`
    loading = 8 * max(*matrices, 2 * config.intermediate * config.hidden)  # two float32 copies of the largest
    if weight_bytes == 1:  # while they are converted they are in a file, which is mapped afterwards
        loading = max(0, loading - weights)
    slot_bytes = 2 * config.layers * config.kv_heads * config.head_dim * kv_bytes
    slots = wanted or max(min(_CACHE_BYTES // slot_bytes, _MAX_SLOTS), 256)
    room = available_memory(device)
    if wanted is None:
        slots = min(slots, max((room - weights - loading) // 2 // slot_bytes, _MIN_SLOTS))
    if (needed := weights + loading + slots * slot_bytes) > room:
        raise UnsupportedModelError(
            f"{checkpoint.path} does not fit in memory: its weights take {weights / 1e9:.1f} GB, loading "
            f"them {loading / 1e9:.1f} GB more, the keys and values of {slots} tokens "
            f"{slots * slot_bytes / 1e9:.1f} GB; that is {needed / 1e9:.1f} GB, "
            f"and {room / 1e9:.1f} GB are free"
        )
    return slots


def available_memory(device: str) -> int:
    """Bytes that this process can still take of a device's memory without pushing others out."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    return min([psutil.virtual_memory().available, *_group_rooms()])


def _group_rooms() -> Iterator[int]:
    """Bytes that each control group above this process leaves; cached files do not count as used."""
    for group in _control_groups():
        with suppress(OSError, ValueError):  # no limit, or a file that may not be read
            room = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
            statistics = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
            yield room + sum(int(statistics.get(name, 0)) for name in ("inactive_file", "active_file"))


def available_cores() -> int:
    """Cores that this process may use. A second thread on a core would gain nothing: the kernels fill it."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    cores = [allowed, psutil.cpu_count(logical=False) or allowed]
    for group in _control_groups():
        with suppress(OSError, ValueError):  # "max": no quota
            quota, period = map(int, (group / "cpu.max").read_text().split())
            cores.append(max(1, quota // period))
    return min(cores)


def _control_groups() -> Iterator[Path]:
    """The folders of the control groups above this process."""
    top = _ROOT / "sys/fs/cgroup"
    lines: list[str] = []
    with suppress(OSError):
        lines = (_ROOT / "proc/self/cgroup").read_text().splitlines()
    names = [line.removeprefix("0::") for line in lines if line.startswith("0::")]  # cgroup v2
    for folder in (top / name.strip("/") for name in names):
        # In a container the group may stand at the top, under another name.
        yield from (folder, *folder.parents[: len(folder.parts) - len(top.parts)])
