"""What a campaign measures of processes, how long it goes on, and what it may use up."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20

LEAK = 4.0
"""MiB in a thousand answers, above which memory counts as lost: 4 KiB of each."""

LONG_ENOUGH = 2000.0
"""Answers from which on that can be told: in fewer, a page more here and there is as much."""


@dataclass
class Plan:
    """How much is tried, and with which seed.

    Attributes:
        seed: Of all that is drawn; item `k` is the same in every run with the same seed.
        count: Items to try; None: as many as there is time for.
        seconds: Time to try them in.
        first: The number of the first item, to go on where another run ended.
    """

    seed: int = 0
    count: int | None = None
    seconds: float = 60.0
    first: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def numbers(self) -> Iterator[int]:
        """Numbers of items, while there is time."""
        number = self.first
        while self.elapsed < self.seconds and (self.count is None or number - self.first < self.count):
            yield number
            number += 1

    def random(self, *item: object) -> random.Random:
        """What is drawn for an item."""
        return random.Random(f"{self.seed} {item}")


def resident(pid: int | None = None) -> float:
    """MiB in memory of this process, after its garbage has been collected, or of another one."""
    if pid is None:
        gc.collect()
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def group_resident(group: int) -> float:
    """MiB in memory of all processes of a group; pages that they share count for each."""
    return sum(resident(pid) for pid in group_members(group))


def group_members(group: int) -> list[int]:
    """The processes of a group."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
        except ProcessLookupError:
            pass
    return found


def descriptors(pid: int | None = None) -> int:
    """Open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid or 'self'}/fd"))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through the second half of some points: the first is a process's start."""
    points = points[len(points) // 2 :]
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def check_flat(points: Sequence[tuple[float, float]]) -> None:
    """Fail if memory (answers so far, MiB) grows by more than `LEAK` over their second half."""
    if points and points[-1][0] - points[0][0] >= LONG_ENOUGH:
        more = 1000 * slope(points)
        assert more < LEAK, f"{more:.1f} MiB more in a thousand answers: {points}"
