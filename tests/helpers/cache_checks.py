"""Invariants of the embedded engine's KV cache: every slot has one owner, every lock a holder."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from pasta_async.backends.local.cache import Node, RadixCache
from pasta_async.backends.local.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Verify a scheduler between steps."""
    private = [job.slots[job.published : job.computed] for job in scheduler.running]
    nodes = [job.node for job in scheduler.running if job.node is not None]
    pool = deepcopy(scheduler.pool)  # whose free slots are all that it gives
    free = pool.take(pool.free) if pool.free else np.empty(0, np.int64)
    owned = np.concatenate([free, *private])
    check_tree(scheduler.radix, nodes, owned, scheduler.pool.size)
    for job in scheduler.running:
        assert job.node is not None
        slots = [step.slots for step in job.node.path()][::-1]
        expected = np.concatenate(slots) if slots else np.empty(0, np.int64)
        assert np.array_equal(expected, job.slots[: job.published]), "a job's slots are not those of its path"


def check_tree(tree: RadixCache, standing: Sequence[Node], owned: NDArray[np.int64], total: int) -> None:
    """Verify a tree.

    Args:
        tree: The tree.
        standing: The node of each running sequence, one for each lock taken.
        owned: Slots that are free or private to a sequence.
        total: Slots in all.
    """
    locks: dict[int, int] = {}
    for node in standing:
        for step in node.path():
            locks[id(step)] = locks.get(id(step), 0) + 1
    slots = [owned]
    evictable = 0
    for node in tree.nodes():
        _check_node(node, locks.pop(id(node), 0))
        slots.append(node.slots)
        evictable += 0 if node.locks else len(node.ids)
    assert not locks, "a sequence stands on a node that is not in the tree"
    assert evictable == tree.evictable, "the count of evictable slots is wrong"
    all_slots = np.sort(np.concatenate(slots))
    assert np.array_equal(all_slots, np.arange(total)), "a slot is lost or has two owners"


def _check_node(node: Node, locks: int) -> None:
    assert len(node.ids) == len(node.slots) > 0, "a node is empty or has not one slot for each id"
    assert node.locks == locks, f"a node has {node.locks} locks, {locks} sequences stand on it or below"
    parent = node.parent
    assert parent is not None
    assert parent.children.get(int(node.ids[0])) is node, "a node is not where its first id says"
    for child in node.children.values():
        assert child.parent is node, "a child names another parent"
