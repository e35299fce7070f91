"""Invariants of the embedded engine's KV cache: every slot has one owner, every lock a holder."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np

from pasta_async.backends.local.cache import Node
from pasta_async.backends.local.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Verify a scheduler between steps."""
    private = [job.slots[job.published : job.computed] for job in scheduler.running]
    pool = deepcopy(scheduler.pool)  # whose free slots are all that it gives
    free = pool.take(pool.free) if pool.free else np.empty(0, np.int64)
    slots = [free, *private]
    locks = Counter(id(step) for job in scheduler.running if job.node for step in job.node.path())
    evictable = 0
    for node in scheduler.radix.nodes():
        _check_node(node, locks.pop(id(node), 0))
        slots.append(node.slots)
        evictable += 0 if node.locks else len(node.ids)
    assert not locks, "a sequence stands on a node that is not in the tree"
    assert evictable == scheduler.radix.evictable, "the count of evictable slots is wrong"
    all_slots = np.sort(np.concatenate(slots))
    assert np.array_equal(all_slots, np.arange(pool.size)), "a slot is lost or has two owners"
    for job in scheduler.running:
        assert job.node is not None
        path = [step.slots for step in job.node.path()][::-1]
        expected = np.concatenate(path) if path else np.empty(0, np.int64)
        assert np.array_equal(expected, job.slots[: job.published]), "a job's slots are not those of its path"


def _check_node(node: Node, locks: int) -> None:
    assert len(node.ids) == len(node.slots) > 0, "a node is empty or has not one slot for each id"
    assert node.locks == locks, f"a node has {node.locks} locks, {locks} sequences stand on it or below"
    parent = node.parent
    assert parent is not None
    assert parent.children.get(int(node.ids[0])) is node, "a node is not where its first id says"
    for child in node.children.values():
        assert child.parent is node, "a child names another parent"
