"""One step's work: new tokens of some sequences, and the slots that each attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class RowBatch(NamedTuple):
    """A batch for the compiled step: each row has the slots that it sees, whatever others see. All int64."""

    ids: Ints  # the id of each row's token, `[rows]`
    positions: Ints  # its position: the row sees so many slots and its own, `[rows]`
    slots: Ints  # where the keys and values of each row go, `[rows]`
    last: Ints  # the row of each entry's last token, `[entries]`
    seen: Ints  # the slots of all entries, entry after entry: `[sum of their lengths]`
    starts: Ints  # the index in `seen` of the first slot that each row sees, `[rows]`

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> RowBatch:
        """The batch of these entries, in order."""
        counts = np.array([entry.count for entry in entries], np.int64)
        lengths = np.array([len(entry.slots) for entry in entries], np.int64)
        return cls(
            *new_tokens(entries),
            last=np.cumsum(counts, dtype=np.int64) - 1,
            seen=np.concatenate([entry.slots for entry in entries]),
            starts=np.repeat(np.cumsum(lengths, dtype=np.int64) - lengths, counts),
        )


def new_tokens(entries: Sequence[Entry]) -> tuple[Ints, Ints, Ints]:
    """Ids, positions and slots of the entries' new tokens, `[rows]` each."""
    return (
        np.concatenate([entry.ids[entry.start : len(entry.slots)] for entry in entries]),
        np.concatenate([np.arange(entry.start, len(entry.slots)) for entry in entries]),
        np.concatenate([entry.slots[entry.start :] for entry in entries]),
    )
