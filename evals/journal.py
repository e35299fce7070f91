"""A file that work can be taken up from: JSON lines, each appended when something is done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pasta_async.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Journal"]


class Journal:
    """Rows that survive an interruption; a line that was cut while it was written is dropped.

    Args:
        path: The file; missing folders are made.
        identity: What the rows are of. It is the first line; rows of something else are never mixed in.
        durable: Force each row to the disk, which takes milliseconds: for what was paid for.

    Raises:
        InvalidRequest: The file holds rows of something else; the message says what differs.
    """

    def __init__(self, path: Path | str, identity: Mapping[str, Any], *, durable: bool = False) -> None:
        self.path: Path = Path(path)
        self.rows: list[dict[str, Any]] = []
        self._durable = durable
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._whole_lines()
        if lines:
            found = self._read(lines)
            self._check(found[0], json.loads(json.dumps(dict(identity))))
            self.rows += found[1:]
        self._file = self.path.open("a", encoding="utf-8")
        if not lines:
            self._write(identity)

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        self._write(row)
        self.rows.append(dict(row))

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(dict(row), ensure_ascii=False) + "\n")
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())

    def _whole_lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self.path.write_bytes(whole)
        return whole.splitlines()

    def _read(self, lines: list[bytes]) -> list[dict[str, Any]]:
        try:
            found: list[Any] = [json.loads(line) for line in lines]
        except ValueError:
            found = [None]
        if not all(isinstance(row, dict) for row in found):
            raise InvalidRequest(f"{self.path} holds no results: write to another place")
        return found

    def _check(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        differ = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        if differ:
            told = "; ".join(f"{key}: {found.get(key)!r} there, {wanted.get(key)!r} now" for key in differ)
            raise InvalidRequest(
                f"{self.path} holds results of something else ({told}); "
                "ask for the same again, or write to another place"
            )
