"""The radix tree over cached keys and values: what it finds, what it evicts, what its check notices."""

from __future__ import annotations

import numpy as np
import torch
from cache_checks import check_tree, free_slots
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.backends.local.batch import Batch, BatchMaker, Block, Entry
from pasta_async.backends.local.cache import PAGE, Node, RadixCache, SlotPool


class _Plain:
    """What the radix tree should know: every sequence put in, as a list."""

    def __init__(self) -> None:
        self.known: set[tuple[int, ...]] = {()}

    def add(self, ids: list[int]) -> None:
        self.known |= {tuple(ids[:end]) for end in range(len(ids) + 1)}

    def longest(self, ids: list[int]) -> int:
        return max(end for end in range(len(ids) + 1) if tuple(ids[:end]) in self.known)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=20))
def test_the_tree_finds_the_longest_prefix_ever_put_in(sequences: list[list[int]]) -> None:
    tree, plain, slots, standing = RadixCache(), _Plain(), 0, list[tuple["Node", list[int]]]()
    free = set(range(1000))
    for ids in sequences:
        array = np.array(ids)
        node, found = tree.match(array)
        assert len(found) == plain.longest(ids)
        fresh = np.array(sorted(free)[: len(ids) - len(found)], np.int64)
        free -= set(fresh.tolist())
        end, known = tree.insert(node, array[len(found) :], fresh)
        assert len(known) == 0
        plain.add(ids)
        tree.lock(end)
        standing.append((end, ids))
        slots += len(fresh)
        check_tree(tree, [node for node, _ in standing], np.array(sorted(free), np.int64), 1000)
    for number, (node, ids) in enumerate(standing):
        if number % 2:
            tree.unlock(node)
            continue
        assert len(tree.match(np.array(ids))[1]) == len(ids)
    kept = [node for node, _ in standing[::2]]
    evictable = tree.evictable
    freed = tree.evict(10**6)
    assert len(freed) == evictable
    assert tree.evictable == 0
    check_tree(tree, kept, np.array(sorted(free | set(freed.tolist())), np.int64), 1000)
    for _, ids in standing[::2]:
        assert len(tree.match(np.array(ids))[1]) == len(ids)  # what is locked stays


def test_eviction_takes_the_least_recently_used_leaf_from_its_end() -> None:
    tree = RadixCache()
    for start in (0, 100, 200):
        ids = np.arange(start, start + 10)
        tree.insert(tree.root, ids, ids)
    tree.match(np.arange(0, 10))
    assert sorted(tree.evict(4).tolist()) == [106, 107, 108, 109]
    assert len(tree.match(np.arange(100, 110))[1]) == 6
    assert sorted(tree.evict(12).tolist()) == [8, 9, *range(200, 210)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3 * PAGE)), max_size=30), st.integers(1, 15 * PAGE)
)
def test_slots_have_one_owner_and_come_back(steps: list[tuple[int, int]], size: int) -> None:
    pool = SlotPool(size)
    owned: dict[int, list[int]] = {}
    for owner, count in steps:
        if count <= pool.free:
            slots = owned.setdefault(owner, [])
            slots += pool.take(count, slots[-1] if slots else None).tolist()
        else:
            pool.give(np.array(owned.pop(owner, []), np.int64))
        taken = [slot for slots in owned.values() for slot in slots]
        assert sorted([*taken, *free_slots(pool).tolist()]) == list(range(size))
        assert pool.free == size - len(taken)


def test_sequences_that_grow_in_turn_each_keep_to_pages_of_their_own() -> None:
    pool = SlotPool(4 * PAGE)
    slots = [pool.take(5) for _ in range(3)]
    for _ in range(20):
        slots = [np.concatenate((own, pool.take(1, int(own[-1])))) for own in slots]
    assert [own.tolist() for own in slots] == [
        list(range(page * PAGE, page * PAGE + 25)) for page in range(3)
    ]


def blocks(maker: BatchMaker, entries: list[Entry]) -> list[Block]:
    made = maker.make(entries)
    assert isinstance(made, Batch)
    return made.blocks


def test_what_single_threads_see_is_a_part_of_its_own() -> None:
    pool, maker = SlotPool(64 * PAGE), BatchMaker(64 * PAGE, torch.device("cpu"), torch.float32)
    shared = pool.take(50)

    def entries(threads: int, tokens: int) -> list[Entry]:
        slots = [np.concatenate((shared, pool.take(tokens))) for _ in range(threads)]
        return [Entry(0, np.zeros(len(own), np.int64), len(own) - 1, own) for own in slots]

    (long,) = blocks(maker, entries(8, 80))
    assert long.private is not None
    assert long.table == slice(0, 2 * PAGE)
    assert torch.equal(long.private.table, torch.arange(2, 2 + 8 * 3))
    (alone,) = blocks(maker, entries(1, 80))
    assert alone.private is None
