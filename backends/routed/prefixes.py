"""Which member was sent which prompts, so that the next prompt that begins alike goes there too."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Prefixes"]

BLOCK = 64
"""Tokens that are looked at together. A prompt shorter than this has no prefix worth sharing."""


class Prefixes:
    """An approximate prefix tree: for each whole block of a prompt, the members that were sent it.

    A block is known by a hash of itself and all before it, so no tokens are kept. The blocks that were not
    used for longest are forgotten; what is left of a prompt is always its beginning.

    Args:
        capacity: Blocks that are remembered, about 200 bytes each.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def known(self, ids: Sequence[int]) -> dict[str, int]:
        """How many leading blocks of a prompt each member was sent before; those without any are left out."""
        counts: dict[str, int] = {}
        for depth, block in enumerate(_blocks(ids)):
            holders = {name for name in self._holders.get(block, ()) if counts.get(name, 0) == depth}
            if not holders:
                break
            counts |= dict.fromkeys(holders, depth + 1)
        return counts

    def note(self, ids: Sequence[int], member: str) -> None:
        """A member is sent this prompt."""
        for block in reversed([*_blocks(ids)]):  # the beginning is used last, and so forgotten last
            self._holders.setdefault(block, set()).add(member)
            self._holders.move_to_end(block)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def forget(self, member: str) -> None:
        """A member has lost its cache."""
        for block in [block for block, holders in self._holders.items() if member in holders]:
            self._holders[block].discard(member)
            if not self._holders[block]:
                del self._holders[block]


def _blocks(ids: Sequence[int]) -> Iterator[bytes]:
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        digest.update(array("q", ids[start : start + BLOCK]).tobytes())
        yield digest.digest()
