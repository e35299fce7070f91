"""The journal of a run: every reply that arrived, on disk before anything is made of it.

A line of JSON for each reply, forced to the disk (fsync). A line that was cut by a crash is dropped when
the journal is opened again. What was accepted follows from the replies, so nothing else is kept.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError

from pasta_async.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["Asked", "Journal", "Reply"]


class _Line(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Asked(_Line):
    """The first line: what the replies answer."""

    model: str
    prompt: str
    """A hash of the instructions and examples."""
    temperature: float


class Reply(_Line):
    """What an annotator said."""

    key: str
    """The digest of the prompt and answer that it is about."""
    text: str
    finish: str
    """Why it ended: "stop", "length", ..."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Journal:
    """An open journal. One process at a time may have it open.

    Args:
        path: The file; it is made, or continued.
        asked: What will be asked.

    Raises:
        InvalidRequest: The file holds replies to something else, or is no journal.
    """

    def __init__(self, path: Path, asked: Asked) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.replies: defaultdict[str, list[Reply]] = defaultdict(list)
        """By key, in the order of their attempts."""
        self._lock = anyio.Lock()
        self._file = path.open("ab+")
        try:
            self._read(path, asked)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    async def append(self, reply: Reply) -> None:
        """Keep a reply: on disk when this returns. A cancellation does not interrupt the writing."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await anyio.to_thread.run_sync(self._write, reply)
            self.replies[reply.key].append(reply)

    def _write(self, line: BaseModel) -> None:
        self._file.write(line.model_dump_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, path: Path, asked: Asked) -> None:
        self._file.seek(0)
        lines = self._file.readlines()
        if lines and not lines[-1].endswith(b"\n"):
            self._file.truncate(self._file.tell() - len(lines.pop()))
        if not lines:
            self._write(asked)
            return
        try:
            before = Asked.model_validate_json(lines[0])
            for line in lines[1:]:
                reply = Reply.model_validate_json(line)
                self.replies[reply.key].append(reply)
        except ValidationError as error:
            raise InvalidRequest(f"{path} is no journal of annotation: {error}") from None
        if before != asked:
            raise InvalidRequest(
                f"{path} holds replies to another question ({before}) than this one ({asked}): "
                "name another folder with --out, or ask as before"
            )
