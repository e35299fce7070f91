"""The kernels' arrays in a file of the cache: made once, then mapped into memory and shared by processes.

A file has the arrays one behind the other, each at a multiple of 64 bytes, then a JSON index, then the length
of the index in 8 bytes. The index says what the arrays were made of and where each begins. A file is used
only if its index is, byte for byte, the one that would be written now: nothing in a file is interpreted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock

from pasta_async.backends.local.checkpoint import Checkpoint
from pasta_async.backends.local.int8 import PANEL, Array, Form
from pasta_async.backends.local.pull import cache_folder

_LOG = logging.getLogger(__name__)

_VERSION = 1
"""Raise it when the arrays are made in another way: older files are then made anew."""

_POPULATE_READ = 22  # for Linux's madvise: map all pages at once, in a tenth of the time
_ALIGNMENT = 64  # bytes of a line of the processor's cache

Make = Callable[[], Iterable[tuple[str, Array]]]


def stored_arrays(checkpoint: Checkpoint, layout: Mapping[str, Form], make: Make) -> dict[str, Array]:
    """The read-only arrays of a checkpoint, mapped from a file, which is made if there is none.

    The file's name has the checkpoint's name and a hash of the paths of its files. It is made anew when one
    of these has another size or time of change, and when it is damaged. It appears when it is complete: if a
    process is killed before, the next caller makes it again, and of two processes one waits for the other.
    If it cannot be written, a warning says so and the arrays are in memory.

    Args:
        checkpoint: The model.
        layout: The arrays' names, types and shapes, in the order in which `make` gives them.
        make: Makes the arrays.
    """
    places = _places(layout)
    try:
        index = _index(checkpoint, layout, places)
        path = _path(checkpoint)
        if (stored := _opened(path, index, places)) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(f"{path.name}.lock")):
                if (stored := _opened(path, index, places)) is None:  # another process may have made it
                    _write(path, index, places, make)
                    stored = _opened(path, index, places)
    except (OSError, NotImplementedError) as error:  # the latter where a file system has no locks
        _LOG.warning(
            "%s is converted at each start, for the file with its weights cannot be written: %s; "
            "PASTA_ASYNC_CACHE names another place",
            checkpoint.path,
            error,
        )
        stored = None
    return _viewed(_in_memory(places, make) if stored is None else stored, layout, places)


def _places(layout: Mapping[str, Form]) -> dict[str, tuple[int, int]]:
    """The first byte and the number of bytes of each array."""
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name, (dtype, shape) in layout.items():
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        size = math.prod(shape) * np.dtype(dtype).itemsize
        end = start + size
        places[name] = (start, size)
    return places


def _end(places: Mapping[str, tuple[int, int]]) -> int:
    return max(start + size for start, size in places.values())


def _index(
    checkpoint: Checkpoint, layout: Mapping[str, Form], places: Mapping[str, tuple[int, int]]
) -> bytes:
    sources = [(str(path.resolve()), *_state(path)) for path in checkpoint.sources]
    arrays = {name: [*layout[name], start] for name, (start, _) in places.items()}
    return json.dumps({"version": _VERSION, "sources": sources, "arrays": arrays}).encode()


def _state(path: Path) -> tuple[int, int]:
    """The size of a file, and the time of its last change in nanoseconds."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _path(checkpoint: Checkpoint) -> Path:
    """The file of a checkpoint for CPUs with this one's `PANEL`."""
    identity = json.dumps([PANEL, *(str(path.resolve()) for path in checkpoint.sources)])
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cache_folder() / "int8" / f"{checkpoint.path.name.removesuffix('.gguf')[:64]}-{key}.int8"


def _opened(path: Path, index: bytes, places: Mapping[str, tuple[int, int]]) -> mmap.mmap | None:
    """The pages of a file; None if there is none, or another than `index` says."""
    tail = index + len(index).to_bytes(8, "little")
    try:
        with path.open("rb") as file:
            file.seek(_end(places))
            if file.read(len(tail) + 1) != tail:
                return None
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    if sys.platform == "linux":
        with suppress(OSError):  # older than 5.14: each page is found when it is first read
            pages.madvise(_POPULATE_READ)
    return pages


def _write(path: Path, index: bytes, places: Mapping[str, tuple[int, int]], make: Make) -> None:
    partial = path.with_name(f"{path.name}.partial")  # one of a killed process is overwritten
    try:
        with partial.open("wb") as file:
            for name, array in make():
                file.seek(places[name][0])
                file.write(np.ascontiguousarray(array).view(np.uint8).data)
            file.seek(_end(places))
            file.write(index + len(index).to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _in_memory(places: Mapping[str, tuple[int, int]], make: Make) -> mmap.mmap:
    """The pages of a file as they would be, without the file."""
    pages = mmap.mmap(-1, _end(places))
    for name, array in make():
        start, size = places[name]
        pages[start : start + size] = array.tobytes()
    return pages


def _viewed(
    pages: mmap.mmap, layout: Mapping[str, Form], places: Mapping[str, tuple[int, int]]
) -> dict[str, Array]:
    return {
        name: np.frombuffer(pages, dtype, math.prod(shape), places[name][0]).reshape(shape)
        for name, (dtype, shape) in layout.items()
    }
