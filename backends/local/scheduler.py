"""Plans steps: the jobs that compute in the next one, and the KV slots of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from pasta_async.backends.local.batch import Ints
from pasta_async.backends.local.cache import Node, RadixCache, SlotPool
from pasta_async.backends.local.sampler import TokenSampler
from pasta_async.engine_load import EngineLoad

_HEADROOM = 8  # slots left for each running job when another is admitted
_MAX_STARTED_ANSWERS = 4096  # beyond it the oldest answer counts as not started


class Job:
    """A sequence being decoded: its tokens, and the slots of those that have keys and values.

    Args:
        answer: The answer that it belongs to.
        ids: The context, at least one token.
        max_tokens: Most tokens to decode, at least one.
        sampler: Chooses them.
        stop_ids: Tokens after which it ends.
    """

    def __init__(
        self,
        answer: Hashable,
        ids: Sequence[int],
        max_tokens: int,
        sampler: TokenSampler,
        stop_ids: Collection[int],
    ) -> None:
        self.answer: Hashable = answer
        self.sampler: TokenSampler = sampler
        self.stop_ids: frozenset[int] = frozenset(stop_ids)
        self.prompt_length: int = len(ids)
        self.length: int = len(ids)
        self.max_length: int = len(ids) + max_tokens
        self.ids: Ints = np.empty(self.max_length, np.int64)
        self.ids[: self.length] = ids
        self.slots: Ints = np.empty(self.max_length, np.int64)
        self.computed = 0  # tokens that have keys and values
        self.published = 0  # tokens of these whose slots the radix tree owns; the others are this job's own
        self.last_slot: int | None = None  # the latest slot that it got since it was admitted
        self.node: Node | None = None  # where it stands in the tree, locked; None while it waits
        self.cached: int | None = None  # prompt tokens that came from the cache; None until it is admitted
        self.publications_seen = 0  # publications when it last looked for its prompt in the tree
        self.arrival = 0

    @property
    def uncomputed(self) -> int:
        """Tokens without keys and values: 1 while it decodes, more before."""
        return self.length - self.computed


class Task(NamedTuple):
    """Compute the next `tokens` tokens of a job."""

    job: Job
    tokens: int


class Scheduler:
    """Continuous batching over one pool of KV slots.

    Decoded tokens come first, then prompts, a part at a time, so that a long prompt does not stall the rest.
    Jobs of answers that have started are admitted before new answers, in order of arrival. When slots run
    out, cached ones are evicted; then the youngest jobs are preempted: they wait again, and what they
    computed stays cached. The oldest is never preempted, and no job may need more than the pool of `slots`,
    so something always moves.
    """

    def __init__(self, slots: int, max_running: int, max_prefill_tokens: int) -> None:
        self.pool: SlotPool = SlotPool(slots)
        self.radix: RadixCache = RadixCache()
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._started_answers: OrderedDict[Hashable, None] = OrderedDict()
        self._arrivals = 0
        self._publications = 0  # times that a job has given the tree tokens

    def add(self, job: Job) -> None:
        """Take a job in."""
        self._arrivals += 1
        job.arrival = self._arrivals
        self.waiting.append(job)

    def remove(self, job: Job) -> None:
        """Let a job go; what it computed stays in the cache."""
        if job.node is None:
            self.waiting.remove(job)
        else:
            self._leave(job)

    def plan(self) -> list[Task]:
        """The next step's tasks, with slots assigned to their tokens. Empty: there are no jobs."""
        self._admit()
        # Every job that decodes gets its one token. Prompts share the step's budget, in the order of
        # arrival; the last one that fits gets a part. So the oldest job, which is never preempted, always has
        # a task.
        tasks = [Task(job, 1) for job in self.running if job.uncomputed == 1]
        budget = self._max_prefill_tokens
        prompts = [job for job in self.running if job.uncomputed > 1]
        for job in sorted(prompts, key=lambda job: job.arrival):
            if budget:
                self._catch_up(job)
                tasks.append(Task(job, min(job.uncomputed, budget)))
                budget -= tasks[-1].tokens
        # Preemption for want of slots may take tasks away again. The slots go to the tasks that are left.
        tasks = self._make_room(tasks)
        for job, count in tasks:
            taken = self.pool.take(count, job.last_slot)
            job.slots[job.computed : job.computed + count] = taken
            job.last_slot = int(taken[-1])
        return tasks

    def load(self) -> EngineLoad:
        """The load now. May be called from any thread."""
        kv_use = 1 - self._available / self.pool.size
        return EngineLoad(self._max_running, len(self.running), len(self.waiting), kv_use)

    def publish(self, job: Job) -> None:
        """Give the tree the tokens that a running job has computed since, so that other jobs find them."""
        if job.computed == job.published:
            return
        assert job.node is not None
        self._publications += 1
        new = slice(job.published, job.computed)
        node, tree_slots = self.radix.insert(job.node, job.ids[new], job.slots[new])
        if len(tree_slots):  # another job computed the same tokens: use its slots, free the job's own
            duplicate = slice(job.published, job.published + len(tree_slots))
            self.pool.give(job.slots[duplicate])
            job.slots[duplicate] = tree_slots
        # The job now stands further down in the tree: lock the new path before the old one is unlocked.
        self.radix.lock(node)
        self.radix.unlock(job.node)
        job.node = node
        job.published = job.computed

    def _admit(self) -> None:
        """Let waiting jobs in, those of answers that have started first, until one does not fit."""
        if len(self.running) >= self._max_running:
            return
        ready = sorted(self.waiting, key=lambda job: (job.answer not in self._started_answers, job.arrival))
        for job in ready[: self._max_running - len(self.running)]:
            if not self._enter(job):
                return

    def _enter(self, job: Job) -> bool:
        """Admit a job if there is room for its prompt; False if there is none."""
        # Running jobs need slots for their next tokens, too.
        headroom = _HEADROOM * len(self.running)
        # So much is needed even if the whole prompt is in the tree. Without that nothing is published: each
        # `publish` adds a node, and a job may wait for many steps.
        if self.running and self._available < 1 + headroom:
            return False
        # Threads of the same answer share most of their context: make all of it known to the tree.
        for other in self.running:
            if other.answer == job.answer:
                self.publish(other)
        # The last token is always computed, for its logits. The lock keeps the prefix from being evicted.
        node, slots = self.radix.match(job.ids[: job.length - 1])
        self.radix.lock(node)
        if self._available < job.length - len(slots) + headroom:
            self.radix.unlock(node)
            return False
        self._go_on_from(node, slots, job)
        job.publications_seen = self._publications
        job.cached = len(slots) if job.cached is None else job.cached
        self.waiting.remove(job)
        self.running.append(job)
        self._started_answers[job.answer] = None
        self._started_answers.move_to_end(job.answer)
        if len(self._started_answers) > _MAX_STARTED_ANSWERS:
            self._started_answers.popitem(last=False)
        return True

    def _catch_up(self, job: Job) -> None:
        """Let a prompt go on behind what other jobs have published since it last looked.

        So a prompt that comes many times at once, or its long common beginning, is computed once.
        """
        if job.publications_seen == self._publications:
            return
        self.publish(job)
        node, slots = self.radix.match(job.ids[: job.length - 1])
        if (new := len(slots) - job.computed) > 0:
            assert job.node is not None and job.cached is not None
            self.radix.lock(node)
            self.radix.unlock(job.node)
            self._go_on_from(node, slots, job)
            job.cached = min(job.cached + new, job.prompt_length - 1)  # it may have been preempted
            job.last_slot = None
        job.publications_seen = self._publications

    @staticmethod
    def _go_on_from(node: Node, slots: Ints, job: Job) -> None:
        """Put a job on a node of the tree that is locked for it; `slots` are those of the tokens up to it."""
        job.slots[: len(slots)] = slots
        job.node = node
        job.computed = job.published = len(slots)

    def _leave(self, job: Job) -> None:
        """End a job's run; its tokens stay in the tree, as cache."""
        self.publish(job)
        assert job.node is not None
        self.radix.unlock(job.node)
        self.running.remove(job)
        job.node = None
        job.computed = 0
        job.published = 0
        job.last_slot = None

    @property
    def _available(self) -> int:
        return self.pool.free + self.radix.evictable

    def _make_room(self, tasks: list[Task]) -> list[Task]:
        """Evict, and if need be preempt jobs, until the pool has a slot for every task's token."""
        # A preempted job's tokens become evictable, and its task needs no slots any more.
        while (needed := sum(count for _, count in tasks)) > self._available:
            youngest = max(self.running, key=lambda job: job.arrival)
            self._leave(youngest)
            self.waiting.append(youngest)
            tasks = [task for task in tasks if task.job is not youngest]
        if needed > self.pool.free:  # more than needed: each time goes through the whole tree
            self.pool.give(self.radix.evict(max(needed - self.pool.free, self.pool.size // 64)))
        return tasks
