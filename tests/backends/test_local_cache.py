"""The radix tree over cached keys and values: what it finds, what it evicts, what its check notices."""

from __future__ import annotations

import numpy as np

from pasta_async.backends.local.cache import PAGE, RadixCache, SlotPool


def test_eviction_takes_the_least_recently_used_leaf_from_its_end() -> None:
    tree = RadixCache()
    for start in (0, 100, 200):
        ids = np.arange(start, start + 10)
        tree.insert(tree.root, ids, ids)
    tree.match(np.arange(0, 10))
    assert sorted(tree.evict(4).tolist()) == [106, 107, 108, 109]
    assert len(tree.match(np.arange(100, 110))[1]) == 6
    assert sorted(tree.evict(12).tolist()) == [8, 9, *range(200, 210)]


def test_sequences_that_grow_in_turn_each_keep_to_pages_of_their_own() -> None:
    pool = SlotPool(4 * PAGE)
    slots = [pool.take(5) for _ in range(3)]
    for _ in range(20):
        slots = [np.concatenate((own, pool.take(1, int(own[-1])))) for own in slots]
    assert [own.tolist() for own in slots] == [
        list(range(page * PAGE, page * PAGE + 25)) for page in range(3)
    ]
