"""One step's work, laid out for the model: a flat batch of tokens, and what each of them attends to.

Threads of one answer share most of their context. So attention runs over *groups*: all queries of an answer
meet the union of its threads' slots, and a mask says which of them each query may see. Keys and values of the
shared part are read once, and one product serves all threads. What only one thread has is attended to apart
(`OwnPart`): it stands in runs of slots that are not next to each other, and others need not look at it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from pasta_async.backends.local.cache import RUN

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float32]

__all__ = ["Batch", "BatchMaker", "Block", "Entry", "OwnPart"]

_FEW_GROUPS = 4  # up to which each may have a product, or two, of its own
_SPARSE = 3  # runs for each thread up to which its own part is looked at apart: those between are read along
_HOLES = 0.2  # share of slots between those attended to that is read along rather than stepped over
_MOST_QUERIES = 64  # of a prompt in one product: a part does not read the keys of those behind it
_LARGE = 32  # queries of a group that is worth a product of its own
_WASTE = 1.5  # groups share a block while padding makes it at most this much larger


@dataclass(frozen=True, slots=True)
class Entry:
    """New tokens of one sequence: those from `start`; all before have their keys and values."""

    group: Hashable
    """Sequences of a group are expected to share slots."""
    ids: Ints
    start: int
    slots: Ints
    """Of all tokens up to the last new one."""

    @property
    def count(self) -> int:
        """How many tokens are new."""
        return len(self.slots) - self.start


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What each query alone sees: a row of the cache, read as `[slots / RUN, RUN, ...]`."""

    rows: slice
    """Runs of the cache; not each of them belongs to a query."""
    columns: int
    """The slots of each run that are looked at: the first ones."""
    mask: torch.Tensor
    """0 or -inf, `[rows, 1, 1, columns]`; 0 for a run that belongs to no query."""
    query_of_row: torch.Tensor
    """The query that meets each run, int64 `[rows]`; any for a run that belongs to none."""
    row_of_query: torch.Tensor
    """The run that belongs to each query, int64 `[queries]`; any for a query without one."""
    absent: torch.Tensor
    """-inf for a query without a run of its own, else 0; `[queries, 1, 1]`."""


@dataclass(frozen=True, slots=True)
class Block:
    """Groups of one shape (padded), whose attention is one product."""

    rows: slice | torch.Tensor
    """The block's rows of the batch, `[groups * queries]`."""
    groups: int
    queries: int
    table: slice | torch.Tensor
    """Slots to attend to, int64 `[groups * keys]`; a slice, read in place, if they stand together."""
    mask: torch.Tensor | None
    """0 or -inf, `[groups, 1, heads per key-value head * queries, keys]`; None: all is seen."""
    own: OwnPart | None = None
    """What is seen besides, for one group of one query for each thread."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A flat batch; every tensor is on the model's device."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    """Where the keys and values of each row go."""
    last: torch.Tensor
    """The row of each entry's last token."""
    blocks: list[Block]

    @property
    def rows(self) -> int:
        """How many tokens are computed."""
        return self.ids.shape[0]


class _Group(NamedTuple):
    """A group's attention before padding."""

    rows: Ints
    table: Ints
    mask: Floats | None
    own: OwnPart | None = None


class BatchMaker:
    """Lays out batches.

    Args:
        slots: Size of the slot pool.
        heads_per_key: Query heads that share a key-value head.
        device: Of the model.
        dtype: Of the model; masks are added to scores of this type.
    """

    def __init__(self, slots: int, heads_per_key: int, device: torch.device, dtype: torch.dtype) -> None:
        self._runs = slots // RUN
        self._apart = device.type == "cpu"  # elsewhere attention does not tell the weight of its parts
        self._column = np.empty(slots, np.int64)  # of a slot in its group's table
        self._used = np.zeros(slots, np.bool_)
        self._repeat = heads_per_key
        self._device, self._dtype = device, dtype

    def make(self, entries: Sequence[Entry]) -> Batch:
        """The batch of these entries, in order."""
        ends = np.cumsum([entry.count for entry in entries])
        members: dict[Hashable, list[tuple[Entry, int]]] = {}
        for entry, end in zip(entries, ends.tolist(), strict=True):
            for part, behind in _parts(entry):
                group = entry.group if part is entry else (entry.group, end, behind)
                members.setdefault(group, []).append((part, end - behind))
        apart = self._apart and len(members) <= _FEW_GROUPS
        groups = [
            self._group([entry for entry, _ in chosen], [end for _, end in chosen], apart)
            for chosen in members.values()
        ]
        return Batch(
            ids=self._tensor(np.concatenate([e.ids[e.start : len(e.slots)] for e in entries])),
            positions=self._tensor(np.concatenate([np.arange(e.start, len(e.slots)) for e in entries])),
            slots=self._tensor(np.concatenate([e.slots[e.start :] for e in entries])),
            last=self._tensor(ends - 1),
            blocks=[self._block(chosen) for chosen in _similar(groups)],
        )

    def _group(self, entries: list[Entry], ends: list[int], apart: bool) -> _Group:
        rows = np.concatenate([np.arange(end - e.count, end) for e, end in zip(entries, ends, strict=True)])
        own, entries = self._own_part(entries) if apart else (None, entries)
        table = self._union(entries)
        if len(rows) == len(entries) and all(len(entry.slots) == len(table) for entry in entries):
            return _Group(rows, table, None, own)
        self._column[table] = np.arange(len(table))
        mask = np.full((len(rows), len(table)), -np.inf, np.float32)
        top = 0
        for entry in entries:
            columns, count = self._column[entry.slots], entry.count
            visible = mask[top : top + count]
            visible[:, columns] = 0
            if count > 1:  # a new token does not see those behind it
                visible[:, columns[entry.start :]] = np.triu(np.full((count, count), -np.inf, np.float32), 1)
            top += count
        return _Group(rows, table, mask, own)

    def _own_part(self, entries: list[Entry]) -> tuple[OwnPart | None, list[Entry]]:
        """What single threads alone see, where it can be looked at apart, and the entries without it."""
        count = len(entries)
        if count == 1 or any(entry.count > 1 for entry in entries):
            return None, entries
        seen = np.concatenate([entry.slots for entry in entries])
        low = int(seen.min())
        seen_by = np.bincount(seen - low)
        private = [_private_run(entry.slots, seen_by[entry.slots - low], self._runs) for entry in entries]
        runs = [int(own[0]) // RUN for own in private if len(own)]
        if len(set(runs)) < len(runs):  # where whole runs have become rare, threads may share one
            return None, entries
        if not runs or any(len(own) == len(e.slots) for own, e in zip(private, entries, strict=True)):
            return None, entries
        first, rows = min(runs), max(runs) + 1 - min(runs)
        columns = max(int(own[-1]) % RUN for own in private if len(own)) + 1
        if rows > _SPARSE * count:
            return None, entries
        mask = np.full((rows, 1, 1, columns), -np.inf, np.float32)
        query_of_row, row_of_query = np.zeros(rows, np.int64), np.zeros(count, np.int64)
        absent = np.full((count, 1, 1), -np.inf, np.float32)
        mask[[row for row in range(rows) if row + first not in runs]] = 0
        for query, own in enumerate(private):
            if len(own):
                row, start = divmod(int(own[0]), RUN)
                mask[row - first, ..., start : start + len(own)] = 0
                query_of_row[row - first], row_of_query[query], absent[query] = query, row - first, 0
        part = OwnPart(
            slice(first, first + rows),
            columns,
            *map(self._tensor, (mask, query_of_row, row_of_query, absent)),
        )
        rest = [
            replace(
                entry, slots=entry.slots[: len(entry.slots) - len(own)], start=len(entry.slots) - len(own) - 1
            )
            for entry, own in zip(entries, private, strict=True)
        ]
        return part, rest

    def _union(self, entries: list[Entry]) -> Ints:
        """The slots that any entry sees, in order; with those between if they are few (a mask hides them)."""
        seen = np.concatenate([entry.slots for entry in entries])
        low, high = int(seen.min()), int(seen.max()) + 1
        self._used[seen] = True
        used = self._used[low:high]
        holes = high - low - np.count_nonzero(used)
        table = np.arange(low, high) if holes <= _HOLES * (high - low) else np.flatnonzero(used) + low
        used[:] = False
        return table

    def _block(self, groups: list[_Group]) -> Block:
        queries, keys = (max(len(part) for part in parts) for parts in list(zip(*groups, strict=True))[:2])
        if len(groups) == 1:
            (group,) = groups
            mask = None if group.mask is None else group.mask[None]
            return Block(
                self._place(group.rows), 1, queries, self._place(group.table), self._mask(mask), group.own
            )
        # Padding repeats a group's first row, which is then computed several times alike, and masks slots.
        index = np.stack([_pad(group.rows, queries) for group in groups])
        table = np.stack([_pad(group.table, keys) for group in groups])
        mask = np.full((len(groups), queries, keys), -np.inf, np.float32)
        for i, group in enumerate(groups):
            shown = 0 if group.mask is None else group.mask
            mask[i, : len(group.rows), : len(group.table)] = shown
            mask[i, len(group.rows) :] = mask[i, 0]
        chosen = self._tensor(index.reshape(-1))
        return Block(chosen, len(groups), queries, self._tensor(table.reshape(-1)), self._mask(mask))

    def _place(self, ordered: Ints) -> slice | torch.Tensor:
        low, high = int(ordered[0]), int(ordered[-1]) + 1
        return slice(low, high) if high - low == len(ordered) else self._tensor(ordered)

    def _mask(self, mask: Floats | None) -> torch.Tensor | None:
        if mask is None:
            return None
        return self._tensor(np.tile(mask[:, None], (1, 1, self._repeat, 1)))

    def _tensor(self, array: Ints | Floats) -> torch.Tensor:
        tensor = torch.as_tensor(array)
        return tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)


def _private_run(slots: Ints, seen_by: Ints, runs: int) -> Ints:
    """The last slots of a sequence that no other has, if they stand together in one run; else none.

    Args:
        slots: Of the sequence.
        seen_by: How many sequences see each.
        runs: How many whole runs the cache has.
    """
    shared = np.flatnonzero(seen_by != 1)
    own = slots[int(shared[-1]) + 1 if len(shared) else 0 :]
    if (
        not len(own)
        or own[-1] - own[0] != len(own) - 1
        or own[0] // RUN != own[-1] // RUN
        or own[0] // RUN >= runs
    ):
        return own[:0]
    return own


def _parts(entry: Entry) -> Iterator[tuple[Entry, int]]:
    """The entry, in parts if it is long, each with the number of its tokens that stand behind the part."""
    if entry.count <= _MOST_QUERIES:
        yield entry, 0
        return
    total = len(entry.slots)
    for start in range(entry.start, total, _MOST_QUERIES):
        end = min(start + _MOST_QUERIES, total)
        yield replace(entry, start=start, slots=entry.slots[:end]), total - end


def _similar(groups: list[_Group]) -> list[list[_Group]]:
    """Put groups of similar size together, so that padding stays small and blocks stay few."""
    result: list[list[_Group]] = []
    size = padded = 0
    for group in sorted(groups, key=lambda group: (len(group.rows), len(group.table)), reverse=True):
        area = len(group.rows) * len(group.table)
        if result:
            widest = max(len(group.table) for group in (*result[-1], group))
            padded = (len(result[-1]) + 1) * len(result[-1][0].rows) * widest
        alone = len(group.rows) >= _LARGE or group.own or (result and result[-1][0].own)
        if result and not alone and padded <= _WASTE * (size + area):
            result[-1].append(group)
            size += area
        else:
            result.append([group])
            size = area
    return result


def _pad(array: Ints, size: int) -> Ints:
    return np.concatenate((array, np.full(size - len(array), array[0])))
