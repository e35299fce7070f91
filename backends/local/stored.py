"""Cached conversions of model files: the kernels' int8 arrays, and the config and tokenizer of GGUF files.

The kernels' arrays are mapped into memory from a file, so that processes share them. It has the arrays one
behind the other, each at a multiple of 64 bytes, then a JSON index, its SHA-256 and its length in 8 bytes.
The index says what the arrays were made of, and the type, shape and place of each. One that is damaged is not
used, for the kernels go by it unchecked.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from pasta_async.backends.local.checkpoint import Checkpoint
from pasta_async.backends.local.int8 import PANEL, Array
from pasta_async.backends.local.pull import cache_folder
from pasta_async.errors import UnsupportedModelError

_LOG = logging.getLogger(__name__)

_VERSION = 3
"""Raise it when arrays or objects are made in another way: older files are then not used."""

_POPULATE_READ = 22  # for Linux's madvise: map all pages at once, in a tenth of the time
_POPULATED = 2**24  # bytes at a time
_ALIGNMENT = 64  # bytes of a line of the processor's cache
_LARGEST_INDEX = 2**24  # bytes: some hundred for each of at most 1000 layers' arrays

Make = Callable[[], Iterable[tuple[str, Array]]]


def stored_arrays(checkpoint: Checkpoint, make: Make) -> dict[str, Array]:
    """The read-only arrays of a checkpoint, mapped from a file, which is made if there is none.

    The file's name has the checkpoint's name and a hash of the paths of its files. It is made anew when one
    of these has another size or time of change, and when it is damaged. It appears when it is complete: if a
    process is killed before, the next caller makes it again, and of two processes one waits for the other.
    Before one is made, the files of models that are gone are deleted. If it cannot be written, a warning says
    so and the arrays are in memory.

    Args:
        checkpoint: The model.
        make: Makes the arrays, with their names.
    """

    def made() -> Iterator[tuple[str, Array]]:
        try:
            yield from make()
        except OSError as error:  # not one of writing
            raise UnsupportedModelError(f"{checkpoint.path} cannot be read: {error}") from error

    try:
        origin = [_VERSION, *map(_state, checkpoint.sources)]
        path = _path(checkpoint)
        if (arrays := _opened(path, origin)) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(f"{path.name}.lock")):
                if (arrays := _opened(path, origin)) is None:  # another process may have made it
                    _delete_orphans(path.parent)
                    _write(path, origin, made())
                    arrays = _opened(path, origin)
    except (OSError, NotImplementedError) as error:  # the latter where a file system has no locks
        _LOG.warning(
            "%s is converted at each start, for the file with its weights cannot be written: %s; "
            "PASTA_ASYNC_CACHE names another place",
            checkpoint.path,
            error,
        )
        arrays = None
    return dict(made()) if arrays is None else arrays


def _state(source: Path) -> list[Any]:
    """A file's path, size and time of change in nanoseconds."""
    state = source.stat()
    return [str(source.resolve()), state.st_size, state.st_mtime_ns]


def _path(checkpoint: Checkpoint) -> Path:
    """The file of a checkpoint for CPUs with this one's `PANEL`."""
    key = _key([*(str(path.resolve()) for path in checkpoint.sources), PANEL])
    return cache_folder() / "int8" / f"{checkpoint.path.name.removesuffix('.gguf')[:64]}-{key}.int8"


def stored_object(source: Path, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A JSON object that is made of a file, or read from the cache if that was done before.

    It is made anew when the file has another size or time of change, and each time where the cache cannot be
    written.

    Args:
        source: The file.
        name: The object's name, one of those that are made of this file.
        make: Makes the object.
    """
    origin = [_VERSION, _state(source)]
    path = cache_folder() / "gguf" / f"{source.stem[:64]}-{_key([str(source.resolve())])}" / f"{name}.json"
    # It may be damaged, by a full disk for instance.
    with suppress(OSError, ValueError, LookupError, TypeError):
        stored: dict[str, Any] = json.loads(path.read_bytes())
        if stored["origin"] == origin:
            return stored["value"]
    value = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{name}.{os.getpid()}")  # another process may be writing it, too
        try:
            content = json.dumps({"origin": origin, "value": value}, ensure_ascii=False)
            partial.write_bytes(content.encode("utf-8", "surrogatepass"))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return value


def _key(identity: list[Any]) -> str:
    """16 hexadecimal digits for the name of a file, by what it is made of."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _opened(path: Path, origin: list[Any]) -> dict[str, Array] | None:
    """The arrays of a file; None if there is none, or one that is damaged or of another origin."""
    if (mapped := _mapped(path)) is None:
        return None
    pages, index = mapped
    if index["origin"] != origin:
        return None
    if sys.platform == "linux":
        with suppress(OSError):  # older than 5.14: each page is found when it is first read
            for start in range(0, len(pages), _POPULATED):  # Python's other threads wait for each call
                pages.madvise(_POPULATE_READ, start, _POPULATED)
    return {
        name: np.frombuffer(pages, dtype, math.prod(shape), start).reshape(shape)
        for name, (dtype, shape, start) in index["arrays"].items()
    }


def _mapped(path: Path) -> tuple[mmap.mmap, dict[str, Any]] | None:
    """The pages of a file and its index; None if there is none, or it is damaged."""
    try:
        with path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError):  # the latter: it is empty
        return None
    size = int.from_bytes(pages[-8:], "little")
    raw = pages[-size - 40 : -40] if size < _LARGEST_INDEX else b""
    return (pages, json.loads(raw)) if hashlib.sha256(raw).digest() == pages[-40:-8] else None


def _delete_orphans(folder: Path) -> None:
    """Delete the files of models that are gone: a clone or an environment that was deleted leaves its own."""
    for path in folder.glob("*.int8"):
        with suppress(OSError):
            if (mapped := _mapped(path)) is None:
                continue
            _version, *sources = mapped[1]["origin"]
            if not all(Path(source).exists() for source, *_ in sources):
                path.unlink()
    # And what a process left that was killed while it wrote: no other one holds its lock.
    for partial in folder.glob("*.int8.partial"):
        with suppress(OSError, Timeout), FileLock(partial.with_suffix(".lock"), timeout=0):
            partial.unlink()


def _write(path: Path, origin: list[Any], made: Iterable[tuple[str, Array]]) -> None:
    partial = path.with_name(f"{path.name}.partial")  # one of a killed process is overwritten
    arrays: dict[str, Any] = {}
    try:
        with partial.open("wb") as file:
            for name, array in made:
                start = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
                arrays[name] = array.dtype.name, array.shape, start
                file.write(np.ascontiguousarray(array).view(np.uint8).data)
            index = json.dumps({"origin": origin, "arrays": arrays}).encode()
            file.write(index + hashlib.sha256(index).digest() + len(index).to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
