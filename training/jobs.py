"""Long work over many items: a journal to go on from, a bounded pool of workers, and items that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from pasta_async.errors import (
    BackendError,
    BackendStatusError,
    InvalidRequestError,
    PastaError,
    ThreadFailedError,
)
from pasta_async.progress import progress

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_IN_A_ROW = 10  # failures, before the others are given up
_OF_ONE_REQUEST = (400, 413, 422)
"""Statuses by which a server refuses one request rather than all of them."""


class Journal:
    """Rows in a file that survive an interruption; a line that was cut while it was written is dropped.

    Args:
        path: The file; missing folders are made.
        identity: The settings that the rows come from. It is the first line; rows of other settings are never
            mixed in.
        run: A row that stands before the first one of this run: the machine, for instance.

    Raises:
        InvalidRequestError: Another command writes the file, or it holds rows of other settings, which the
            message names. It is left as it was.
    """

    def __init__(
        self, path: Path | str, identity: Mapping[str, Any], run: Mapping[str, Any] | None = None
    ) -> None:
        self._run = run
        self.path: Path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            self._lock()
            self.rows: list[dict[str, Any]] = self._read(_line(identity))
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

    def _read(self, identity: bytes) -> list[dict[str, Any]]:
        """The rows of the file, whose first line has to be `identity`; a line that was cut is dropped."""
        self._file.seek(0)
        lines = self._file.readlines()
        # A process that was killed may have left a part of its last line.
        cut = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        rows: list[Any] = []
        try:
            rows += map(json.loads, lines or [identity])
        except ValueError:
            rows.append(None)
        # Without a whole line, what is there has to be the beginning of our own first line.
        if not all(isinstance(row, dict) for row in rows) or not (lines or identity.startswith(cut)):
            raise InvalidRequestError(f"{self.path} holds no results: write to another place")
        stored: dict[str, Any] = rows.pop(0)
        wanted: dict[str, Any] = json.loads(identity)
        # A run that failed before it had results does not bind the next one to its settings.
        is_unused = not rows and not cut and stored.keys() == wanted.keys()
        differences = not is_unused and [
            f"{key}: {stored.get(key)!r} there, {wanted.get(key)!r} now"
            for key in {**stored, **wanted}
            if stored.get(key) != wanted.get(key)
        ]
        if differences:
            raise InvalidRequestError(
                f"{self.path} holds results of other settings ({'; '.join(differences)}); "
                "use the same settings again, or write to another place"
            )
        self._file.truncate(0 if is_unused else sum(map(len, lines)))
        if is_unused or not lines:
            self._write(identity)
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row in the file; `rows` are those that it had before."""
        if self._run:
            self._write(_line(self._run))
            self._run = None
        self._write(_line(row))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(dict(row), ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def journal_beside(out: Path) -> Path:
    """The path of the journal of a command that writes one file."""
    return out.with_name(f"{out.stem}.journal{out.suffix}")


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], at_once: int) -> None:
    """Do the work for each item, in order, never more than `at_once` at the same time.

    Cancelling it cancels the work that is under way.

    Raises:
        Exception: The first error of an item; work that is under way is cancelled.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(worker())
    except BaseExceptionGroup as errors:
        error = _first(errors)  # the others were cancelled because of it
        raise error from error.__cause__


def _first(error: BaseException) -> BaseException:
    """The first error of a group, of groups in it, too."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return _first(group.exceptions[0])


async def collect(
    items: Collection[Item],
    work: Callable[[Item], Awaitable[Result]],
    at_once: int,
) -> tuple[dict[Item, Result], dict[Item, str]]:
    """Ask for something about each item, `at_once` at a time, with a progress bar.

    An item fails by a `PastaError`. That ends the run where others would fail as well: where the backend
    refuses a wrong key, say, fails before any success, or ten times in a row.
    Cancelling it ends the requests under way.

    Returns:
        The results by item, and the reasons of those that failed.

    Raises:
        PastaError: No item can be worked on, or a failure that the others share.
    """
    results: dict[Item, Result] = {}
    failures: dict[Item, str] = {}
    lost: list[BackendError] = []  # since the last success
    with progress(len(items), "answers") as advance:

        async def collect_one(item: Item) -> None:
            try:
                results[item] = await work(item)
                lost.clear()
            except PastaError as error:
                failures[item] = f"{type(error).__name__}: {error}"
                cause = error.__cause__ if isinstance(error, ThreadFailedError) else error
                if isinstance(cause, BackendError):  # else it is the prompt's fault, or took too long
                    lost.append(cause)
                    if _is_shared(cause, not results) or len(lost) >= _MAX_IN_A_ROW:
                        raise
            advance()

        await for_each(items, collect_one, at_once)
    return results, failures


def _is_shared(error: BackendError, first: bool) -> bool:
    """True for a refusal that all other requests would get, or for a failure before any success."""
    if not isinstance(error, BackendStatusError):
        return first
    return error.status not in _OF_ONE_REQUEST and (first or not error.retryable)
