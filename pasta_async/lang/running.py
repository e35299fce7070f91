"""Text that grows by pieces."""

from __future__ import annotations

__all__ = ["RunningText"]

_LOOSE = 128


class RunningText:
    """Text that grows by pieces, in no more memory than a small multiple of its characters.

    A piece of one character takes up to eighty bytes, so pieces are joined from time to time.
    """

    __slots__ = ("_loose", "_packed")

    def __init__(self) -> None:
        self._loose: list[str] = []
        self._packed: list[str] = []

    def append(self, piece: str) -> None:
        """Add a piece."""
        self._loose.append(piece)
        if len(self._loose) > _LOOSE:
            self._pack()

    def _pack(self) -> None:
        self._packed.append("".join(self._loose))
        self._loose.clear()

    def __str__(self) -> str:
        return "".join((*self._packed, *self._loose)) if self._packed else "".join(self._loose)

    def take(self) -> str:
        """The text; it starts anew."""
        text = str(self)
        self._packed.clear()
        self._loose.clear()
        return text
