"""Server-sent events as SGLang writes them, from bytes that may be cut anywhere."""

from __future__ import annotations

__all__ = ["SSEDecoder"]

MAX_EVENT = 64 * 2**20
"""Bytes of one event; more than this is no answer of a language model."""


class SSEDecoder:
    r"""Collects the data of server-sent events (WHATWG HTML, section 9.2), whatever the split into chunks.

    Lines end with ``\n``, ``\r\n`` or ``\r``; an empty line ends an event; comments and the fields other than
    ``data`` mean nothing here. A last event without its empty line is dropped, as the standard has it.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events that `chunk` completes.

        Raises:
            ValueError: The event is not UTF-8, or larger than `MAX_EVENT` bytes.
        """
        text = self._tail + chunk
        # A \r at the very end may be half of a \r\n: it waits for the next chunk.
        end = len(text) - 1 if text.endswith(b"\r") else len(text)
        lines = text[:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._tail = lines.pop() + text[end:]
        events = [data for line in lines if (data := self._line(line)) is not None]
        if len(self._tail) + self._size > MAX_EVENT:
            raise ValueError(f"an event of more than {MAX_EVENT} bytes")
        return events

    def _line(self, line: bytes) -> str | None:
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data).decode() if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
        return None
