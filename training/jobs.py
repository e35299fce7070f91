"""Long work over many items: a journal to go on from, and a bounded pool of workers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from pasta_async.errors import InvalidRequestError, PastaError

Item = TypeVar("Item")


class Journal:
    """Rows in a file that survive an interruption; a line that was cut while it was written is dropped.

    Args:
        path: The file; missing folders are made.
        identity: The settings that the rows come from. It is the first line; rows of other settings are never
            mixed in.
        durable: Force each row to the disk, which takes milliseconds: for rows that cost money.
        held: Keep the rows in `rows`. If they are large, the file is enough: `stored` and `read` give them.

    Raises:
        InvalidRequestError: Another command writes the file, or it holds rows of other settings, which the
            message names. It is left as it was.
    """

    def __init__(
        self, path: Path | str, identity: Mapping[str, Any], *, durable: bool = False, held: bool = True
    ) -> None:
        self.path: Path = Path(path)
        self.rows: list[dict[str, Any]] = []
        self._durable = durable
        self._held = held
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            self._lock()
            self._open(identity)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        """Lock the file until it is closed."""
        import fcntl  # Windows has none, and can use the rest of this module

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(
                f"another command writes {self.path}: wait for it, or write to another place"
            ) from None

    def _open(self, identity: Mapping[str, Any]) -> None:
        """Read the rows, and drop a line that was cut."""
        self._file.seek(0)
        end = sum(len(line) for line in self._file if line.endswith(b"\n"))  # bytes of the whole lines
        if first := next(self._lines(), None):
            self._check(first[1], json.loads(json.dumps(dict(identity))))
            if self._held:
                self.rows += [row for _, row in self.stored()]
        elif not _line(identity).startswith(self.path.read_bytes()):
            raise self._foreign()
        self._file.truncate(end)
        if not end:
            self._write(identity)

    def append(self, row: Mapping[str, Any]) -> int:
        """Keep a row; returns its offset in the file in bytes, for `read`."""
        if self._held:
            self.rows.append(dict(row))
        return self._write(row)

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of the file with their offsets, one at a time."""
        return islice(self._lines(), 1, None)

    def read(self, offset: int) -> dict[str, Any]:
        """The row at an offset in the file."""
        self._file.seek(offset)
        return json.loads(self._file.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _write(self, row: Mapping[str, Any]) -> int:
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(_line(row))
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())
        return offset

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every whole line with its offset."""
        offset = 0
        while self._file.seek(offset) == offset and (line := self._file.readline()).endswith(b"\n"):
            try:
                row: Any = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise self._foreign()
            yield offset, cast("dict[str, Any]", row)
            offset += len(line)

    def _foreign(self) -> InvalidRequestError:
        return InvalidRequestError(f"{self.path} holds no results: write to another place")

    def _check(self, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
        keys = [key for key in {**stored, **wanted} if stored.get(key) != wanted.get(key)]
        if keys:
            differences = "; ".join(
                f"{key}: {stored.get(key)!r} there, {wanted.get(key)!r} now" for key in keys
            )
            raise InvalidRequestError(
                f"{self.path} holds results of other settings ({differences}); "
                "use the same settings again, or write to another place"
            )


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(dict(row), ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def journal_beside(out: Path) -> Path:
    """The path of the journal of a command that writes one file."""
    return out.with_name(f"{out.stem}.journal{out.suffix}")


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], at_once: int) -> None:
    """Do the work for each item, in order, never more than `at_once` at the same time.

    Cancelling it cancels the work that is under way.

    Raises:
        PastaError: The first error of an item; work that is under way is cancelled.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(worker())
    except* PastaError as failed:
        error = _first(failed)
        raise error from error.__cause__  # without the group


def _first(failures: BaseExceptionGroup[PastaError]) -> PastaError:
    error = failures.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
