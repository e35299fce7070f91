"""A step's batch laid out for the model in plain torch: tokens, and blocks whose attention is one product.

Threads of one answer share most of their context. So attention runs over *groups*: all queries of an answer
meet the union of its threads' slots, and a mask says which of them each query may see. Keys and values of the
shared part are read once, and one product serves all threads.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from pasta_async.backends.local.batch import Entry, Floats, Ints, new_tokens
from pasta_async.backends.local.cache import PAGE

_MOST_QUERIES = 64  # queries of a prompt in one product: so that a part reads no keys of later parts
_MANY_QUERIES = 32  # queries of a group from which on it gets a product of its own
_WASTE = 1.5  # groups share a block while padding makes it at most this much larger
_COPIED = 128  # most pages that are copied for one product: they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Block:
    """Groups of one shape (padded), whose attention is one product."""

    rows: slice | torch.Tensor  # the block's rows of the batch, `[groups * queries]`
    groups: int
    queries: int
    table: torch.Tensor  # the pages that are seen, int64 `[groups * pages]`
    mask: torch.Tensor  # 0 or -inf, `[groups, 1, queries, keys]`


@dataclass(frozen=True, slots=True)
class Batch:
    """A flat batch; every tensor is int64, on the model's device."""

    ids: torch.Tensor  # the id of each row's token, `[rows]`
    positions: torch.Tensor  # its position in its sequence, `[rows]`
    slots: torch.Tensor  # where the keys and values of each row go, `[rows]`
    last: torch.Tensor  # the row of each entry's last token, `[entries]`
    blocks: list[Block]


class _Group(NamedTuple):
    """A group's attention before padding."""

    rows: Ints
    pages: Ints
    mask: Floats  # `[rows, keys]`


class BatchMaker:
    """Lays out batches for a pool of `slots`; masks have the `dtype` of keys and values."""

    def __init__(self, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self._column = np.empty(PAGE * math.ceil(slots / PAGE), np.int64)  # the mask column of each slot
        self._device = device
        self._dtype = dtype

    def make(self, entries: Sequence[Entry]) -> Batch:
        """The batch of these entries, in order."""
        ends = np.cumsum([entry.count for entry in entries])
        # Entries of one group attend together. A long prompt is cut, and each of its parts is a group alone.
        members: dict[Hashable, list[tuple[Entry, int]]] = {}
        for entry, end in zip(entries, ends.tolist(), strict=True):
            for part, behind in _parts(entry):
                group = entry.group if part is entry else (entry.group, end, behind)
                members.setdefault(group, []).append((part, end - behind))
        groups = [self._group(chosen) for chosen in members.values()]
        ids, positions, slots = map(self._tensor, new_tokens(entries))
        blocks = [self._block(chosen) for chosen in _similar(groups)]
        return Batch(ids, positions, slots, self._tensor(ends - 1), blocks)

    def _group(self, members: list[tuple[Entry, int]]) -> _Group:
        """The attention of entries that share slots, each given with the end of its rows in the batch."""
        rows = np.concatenate([np.arange(end - entry.count, end) for entry, end in members])
        pages = self._pages(np.concatenate([entry.slots for entry, _ in members]))
        # A row per query, a column per slot of the pages: 0 where the query may look, -inf elsewhere.
        mask = np.full((len(rows), len(pages) * PAGE), -np.inf, np.float32)
        top = 0
        for entry, _ in members:
            columns, count = self._column[entry.slots], entry.count
            visible = mask[top : top + count]
            visible[:, columns] = 0
            if count > 1:  # a new token does not see those behind it
                visible[:, columns[entry.start :]] = np.triu(np.full((count, count), -np.inf, np.float32), 1)
            top += count
        return _Group(rows, pages, mask)

    def _pages(self, slots: Ints) -> Ints:
        """The pages that slots are on; sets the column of each of their slots."""
        pages = np.unique(slots // PAGE)
        self._column.reshape(-1, PAGE)[pages] = np.arange(len(pages) * PAGE).reshape(-1, PAGE)
        return pages

    def _block(self, groups: list[_Group]) -> Block:
        queries = max(len(group.rows) for group in groups)
        most = max(len(group.pages) for group in groups)
        # Padding repeats a group's first row, which is then computed several times alike, and masks slots.
        index = np.concatenate([_pad(group.rows, queries) for group in groups])
        table = np.concatenate([_pad(group.pages, most) for group in groups])
        mask = np.full((len(groups), 1, queries, most * PAGE), -np.inf, np.float32)
        for i, group in enumerate(groups):
            mask[i, 0, : len(group.rows), : len(group.pages) * PAGE] = group.mask
            mask[i, 0, len(group.rows) :] = mask[i, 0, 0]
        return Block(self._row_index(index), len(groups), queries, self._tensor(table), self._tensor(mask))

    def _row_index(self, rows: Ints) -> slice | torch.Tensor:
        in_order = bool((np.diff(rows) == 1).all())
        return slice(int(rows[0]), int(rows[-1]) + 1) if in_order else self._tensor(rows)

    def _tensor(self, array: Ints | Floats) -> torch.Tensor:
        tensor = torch.as_tensor(array)
        return tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)


def _parts(entry: Entry) -> Iterator[tuple[Entry, int]]:
    """The entry, or parts of it if it is long, each with the number of new tokens behind the part."""
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
    size = 0
    for group in sorted(groups, key=lambda group: (len(group.rows), len(group.pages)), reverse=True):
        area = len(group.rows) * len(group.pages)
        if result and _fits(group, result[-1], size + area):
            result[-1].append(group)
            size += area
        else:
            result.append([group])
            size = area
    return result


def _fits(group: _Group, block: list[_Group], area: int) -> bool:
    """True if a group may join a block of groups with no fewer rows; `area`: all rows x pages, unpadded."""
    rows = len(block[0].rows)
    pages = (len(block) + 1) * max(len(member.pages) for member in (*block, group))
    return rows < _MANY_QUERIES and pages <= _COPIED and rows * pages <= _WASTE * area


def _pad(array: Ints, size: int) -> Ints:
    return np.concatenate((array, np.full(size - len(array), array[0])))
