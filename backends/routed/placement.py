"""Where an answer goes: to the member that has most of its prompt cached, unless that one is too busy."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from pasta_async.backends.routed.prefixes import BLOCK, Prefixes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.backends.routed.member import Member

__all__ = ["Placement"]

EXCESS = 1.25
"""How far above the mean load a member may be and still get answers for what it has cached."""

SLACK = 16
"""Requests that do not count for that, about those of one answer: batches are cheap while they are small."""

ANSWERS = 65_536
"""Answers whose place is remembered."""


class Placement:
    """Remembers where answers are, and chooses for new ones by the rule that `RoutedBackend` tells."""

    def __init__(self) -> None:
        self._prefixes = Prefixes()
        self._places: OrderedDict[str, tuple[Member, int]] = OrderedDict()

    def place(self, answer: str, ids: Sequence[int], live: Sequence[Member]) -> Member:
        """The member that has the answer, if it has lived since it got it; else one for it.

        Args:
            answer: The answer's name.
            ids: The prompt of its first request, or of this one.
            live: The members that live, at least one.
        """
        member, life = self._places.get(answer, (None, 0))
        if member is None or member not in live or member.life != life:
            member = self.choose(ids, live)
        self._places[answer] = member, member.life
        self._places.move_to_end(answer)
        if len(self._places) > ANSWERS:
            self._places.popitem(last=False)
        return member

    def choose(self, ids: Sequence[int], live: Sequence[Member]) -> Member:
        """The member for a new prompt, which is remembered."""
        bound = EXCESS * sum(member.open for member in live) / len(live) + SLACK
        known = self._prefixes.known(ids)

        def rank(member: Member) -> tuple[int, int, bytes]:
            return -known.get(member.name, 0), member.open, _lot(ids, member.name)

        chosen = min((member for member in live if member.open <= bound), key=rank)
        self._prefixes.note(ids, chosen.name)
        return chosen

    def forget(self, member: Member) -> None:
        """A member is gone, and its cache with it."""
        self._prefixes.forget(member.name)


def _lot(ids: Sequence[int], name: str) -> bytes:
    """The member's lot for prompts that begin like this; the lowest wins (rendezvous hashing)."""
    key = f"{name} {' '.join(map(str, ids[:BLOCK]))}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
