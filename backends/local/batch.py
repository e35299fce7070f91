"""One step's work: new tokens of some sequences, and the slots that each attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Entry:
    """New tokens of one sequence: those from `start`; all before have their keys and values."""

    ids: Ints
    start: int
    slots: Ints  # the slot of each token up to the last new one

    @property
    def count(self) -> int:
        """The number of new tokens."""
        return len(self.slots) - self.start


def new_tokens(entries: Sequence[Entry]) -> tuple[Ints, Ints, Ints]:
    """Ids, positions and slots of the entries' new tokens, `[rows]` each."""
    return (
        np.concatenate([entry.ids[entry.start : len(entry.slots)] for entry in entries]),
        np.concatenate([np.arange(entry.start, len(entry.slots)) for entry in entries]),
        np.concatenate([entry.slots[entry.start :] for entry in entries]),
    )
