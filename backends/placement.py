"""Where an answer goes: to the member that has most of its prompt cached, unless that one is too busy."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

BLOCK = 64
"""Tokens that are looked at together. A prompt shorter than this has no prefix worth sharing."""

EXCESS = 1.25
"""How far above the mean load a member may be and still get answers for what it has cached.

Without a bound, a popular system prompt would send everything to one server (consistent hashing with bounded
loads has the same one, arXiv 1608.01350).
"""

SLACK = 16
"""Requests that do not count for that, about those of one answer: batches are cheap while they are small."""

ANSWERS = 65_536
"""Answers whose place is remembered."""


class Placement:
    """Remembers where answers are, and chooses for new ones, of the members that are not too busy for more.

    The longest prefix of the prompt that was sent before decides: a conversation's next turn meets its own
    history, while prompts that share only a system prompt tie once it is known everywhere. Ties go to the
    lowest load, then by rendezvous hashing of the first tokens, so that several processes in front of the
    same servers mostly agree without talking to each other.

    Members have names here; `loads` are the open requests of those that can be used, at least one.
    """

    def __init__(self) -> None:
        self._prefixes = Prefixes()
        self._places: OrderedDict[str, str] = OrderedDict()

    def place(self, answer: str, ids: Sequence[int], loads: Mapping[str, int]) -> str:
        """The member that has the answer; else one for it, by the prompt of its first request."""
        name = self._places.get(answer)
        if name is None or name not in loads:
            name = self.choose(ids, loads)
        self._places[answer] = name
        self._places.move_to_end(answer)
        if len(self._places) > ANSWERS:
            self._places.popitem(last=False)
        return name

    def known(self, answer: str) -> str | None:
        """The member that has the answer, if one has."""
        return self._places.get(answer)

    def choose(self, ids: Sequence[int], loads: Mapping[str, int]) -> str:
        """The member for a new prompt, which is remembered."""
        bound = EXCESS * sum(loads.values()) / len(loads) + SLACK
        known = self._prefixes.known(ids)

        def rank(name: str) -> tuple[int, int, bytes]:
            return -known.get(name, 0), loads[name], _rendezvous_hash(ids, name)

        chosen = min((name for name in loads if loads[name] <= bound), key=rank)
        self._prefixes.note(ids, chosen)
        return chosen

    def forget(self, name: str) -> None:
        """A member was lost, and with it the answers that it had and what it cached."""
        self._prefixes.forget(name)
        for answer in [answer for answer, place in self._places.items() if place == name]:
            del self._places[answer]


def _rendezvous_hash(ids: Sequence[int], name: str) -> bytes:
    """A member's weight for prompts that begin like this; of all members the lowest wins."""
    key = f"{name} {' '.join(map(str, ids[:BLOCK]))}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


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
