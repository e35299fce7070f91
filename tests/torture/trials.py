"""The number of items that a part of `make torture` tries, and their random choices."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Figures = dict[str, Any]

SUBJECTS = ("tea", "old clocks", "a tent", "two boats", "red bikes", "the moon", "a lamp", "chess")


@dataclass
class Trials:
    """The items to try, and their seed.

    Attributes:
        seed: Of all that is drawn; item `k` is the same in every run with the same seed.
        count: Items to try; None: as many as there is time for.
        seconds: Time to try them in.
        first: The number of the first item, to try again what failed.
    """

    seed: int = 0
    count: int | None = None
    seconds: float = 60.0
    first: int = 0
    began: float = field(default_factory=time.monotonic)

    def numbers(self) -> Iterator[int]:
        """Numbers of items, while there is time."""
        number = self.first
        while time.monotonic() - self.began < self.seconds:
            if self.count is not None and number - self.first >= self.count:
                return
            yield number
            number += 1

    def random(self, *item: object) -> random.Random:
        """The source of randomness of an item."""
        return random.Random(f"{self.seed} {item}")


def draw_prompt(drawn: random.Random) -> str:
    """A prompt that the model of the tests answers in several threads."""
    things = drawn.sample(SUBJECTS, drawn.randint(2, 4))
    facts = " ".join(f"{thing.capitalize()} weighs {drawn.randrange(1, 90)} kilos." for thing in things)
    return f"Give a short description of each of {', '.join(things)}. {facts}"
