"""The shell around the machine: one `asyncio.Task` for each thread, requests sent, pieces moved.

The contract on cancellation (docs/interpreter.md): when `Runner.run` returns or raises, no task of the answer
is left and every request it opened is over or was aborted. An outside cancellation always wins over an error
that happens meanwhile, and is never translated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from pasta_async.clock import Clock, time_limit
from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    PastaError,
    ThreadFailedError,
)
from pasta_async.events import Emit
from pasta_async.interpreter.admission import AnswerSlots, Slot
from pasta_async.interpreter.machine import Machine
from pasta_async.observers import AnswerObserver, AnswerStart
from pasta_async.protocol import Backend, DecodeRequest, Model
from pasta_async.results import FinishReason, Generation
from pasta_async.tag_tokens import TagIds

_T = TypeVar("_T")

_FIRST_DELAY = 0.25
"""Seconds before the first retry; doubles with each further one."""

_MAX_DELAY = 60.0
"""Seconds between two requests at most, whatever a server's Retry-After says."""


def retry_delay(attempt: int, error: BackendError) -> float:
    """Seconds to wait after failure `attempt` (from 0): the server's Retry-After, or backoff with jitter."""
    if isinstance(error, BackendStatusError) and error.retry_after is not None:
        return min(error.retry_after, _MAX_DELAY)
    return min(_FIRST_DELAY * 2**attempt, _MAX_DELAY) * random.uniform(0.5, 1.0)


async def with_retries(work: Callable[[], Awaitable[_T]], retries: int, clock: Clock) -> _T:
    """Call `work` (connecting, say), and again after each error that is `retryable`.

    Raises:
        BackendError: The error of the last try.

    Cancelling it cancels the try, or the wait, that is under way.
    """
    for attempt in range(retries):
        try:
            return await work()
        except BackendError as error:
            if not error.retryable:
                raise
            await clock.sleep(retry_delay(attempt, error))
    return await work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An answer, or a plan, that is ready to be decoded: its backend is connected, its prompt encoded."""

    backend: Backend
    clock: Clock
    start: AnswerStart
    observer: AnswerObserver
    slots: AnswerSlots
    thread_limit: asyncio.Semaphore
    """Held by each of its threads that decodes."""
    model: Model
    prompt: tuple[int, ...]
    """Ids of the prompt."""
    tags: TagIds | None
    """Ids of the tags that are read; None for an answer without tags."""
    notes: tuple[str, ...]
    began: float
    """The clock's time when the model was connected."""
    deadline: float | None
    """The clock's time at which it has to be done."""

    def now(self) -> float:
        """Seconds since it began."""
        return self.clock.time() - self.began

    @asynccontextmanager
    async def decoding(self, number: int) -> AsyncGenerator[Slot]:
        """Hold a place within the thread limit, and a slot of the client, while a thread decodes."""
        self.observer.thread_state(number, "waiting")
        try:
            async with self.thread_limit, self.slots.thread() as slot:
                self.observer.thread_state(number, "decoding")
                yield slot
        finally:
            self.observer.thread_state(number, "over")


@asynccontextmanager
async def limited_group(group: asyncio.TaskGroup, prepared: Prepared, work: str) -> AsyncGenerator[None]:
    """A group of tasks that has to be done by the deadline; `work` names it in the error.

    Raises:
        asyncio.CancelledError: The caller was cancelled. That wins over an error.
        GenerationTimeoutError: The time was up.
        Exception: The first error of the block or of a task; the others followed from it.
    """
    caller = asyncio.current_task()
    cancellations = caller.cancelling() if caller else 0
    timeout = prepared.start.limits.timeout
    try:
        async with group, time_limit(prepared.clock, prepared.deadline, timeout, work):
            yield
    except BaseExceptionGroup as errors:
        # A cancellation that was requested since the group began came from outside.
        if caller and caller.cancelling() > cancellations:
            raise asyncio.CancelledError from None
        error: BaseException = errors.exceptions[0]
        raise error from error.__cause__


class Runner:
    """Runs one answer, as the machine decides.

    `emit` receives events; it may wait, and then so does the thread that emits them.
    """

    def __init__(self, prepared: Prepared, emit: Emit | None) -> None:
        self.machine: Machine = Machine(
            prepared.model,
            prepared.tags,
            prepared.start,
            prompt=prepared.prompt,
            listen=emit is not None,
            notes=prepared.notes,
        )
        self._prepared = prepared
        self._start = prepared.start
        self._slots = prepared.slots
        self._clock = prepared.clock
        self._observer = prepared.observer
        self._emit = emit
        self._slot_of: dict[int, Slot] = {}  # by the number of the thread that holds it
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()

    async def run(self) -> Generation:
        """Decode the answer.

        Raises:
            ThreadFailedError: A thread could not be decoded.
            GenerationTimeoutError: The answer's time was up.
            asyncio.CancelledError: The caller was cancelled.

        Cancelling it ends every thread, aborts every open request and waits until that is done.
        """
        try:
            async with limited_group(self._group, self._prepared, "the answer"):
                self._begin(0)
                await self._ended(0)
                await self._settle()
        except PastaError as error:
            error.partial = await self._finish("error")
            raise
        return await self._finish()

    def partial(self) -> Generation:
        """The answer so far."""
        return self.machine.transcript.generation(self._prepared.now())

    async def _finish(self, finish_reason: FinishReason | None = None) -> Generation:
        if self._slots.trouble:
            self.machine.transcript.notes += (self._slots.trouble,)
        generation = self.machine.finish(finish_reason, self._prepared.now())
        if wait := self._hand_on():
            async with self._slots.idle():
                await wait
        return generation

    # Threads ----------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        work = self._thread(number) if number else self._main()
        name = f"pasta {self._start.answer} thread {number}"
        self._tasks[number] = self._group.create_task(work, name=name)

    async def _main(self) -> None:
        """Thread 0: decode up to a sync, wait for the round's threads, go on."""
        machine = self.machine
        while True:
            await self._thread(0)
            if machine.main.state == "done":
                return
            await self._settle()
            if machine.main.state != "joining":
                return  # a stop text in a chunk ended the answer
            machine.join(self._prepared.now())
            await self._flush(0)

    async def _settle(self) -> None:
        """Wait until no promise of the round is open."""
        while waiting := self.machine.open_threads:
            await self._ended(*waiting)

    async def _ended(self, *numbers: int) -> None:
        """Wait until the tasks of these threads are over."""
        await asyncio.wait([self._tasks[number] for number in numbers])

    async def _thread(self, number: int) -> None:
        """Decode a thread until it is done or, main, has to wait."""
        if not self.machine.wants(number):
            return
        async with self._prepared.decoding(number) as slot:
            transcript = self.machine.transcript
            if slot.waited and transcript.width == "full":
                transcript.width = "limited"
                transcript.notes += (f"threads waited for room: {slot.waited}",)
            self._slot_of[number] = slot
            try:
                await self._send_requests(number)
            finally:
                del self._slot_of[number]

    async def _without_slot(self, number: int, wait: Awaitable[None]) -> None:
        """Wait for a reader or a retry; meanwhile another thread, or answer, has the slot."""
        if number not in self._slot_of:
            async with self._slots.idle():
                await wait
            return
        self._observer.thread_state(number, "waiting")
        async with self._slot_of[number].released():
            await wait
        self._observer.thread_state(number, "decoding")

    # Requests ---------------------------------------------------------------------------------------------

    async def _send_requests(self, number: int) -> None:
        """Send a thread's requests. After a failure that may pass it goes on where it broke off."""
        machine = self.machine
        failures = 0
        while machine.wants(number):
            request = machine.request(number, self._prepared.now())
            await self._flush(number)
            if request is None:
                return
            try:
                await self._exchange(request)
            except BackendError as error:
                if not machine.wants(number):
                    return  # the thread is done, so the error of its aborted request does not matter
                again = error.retryable and failures < self._start.limits.retries
                machine.fail(number, error, "retry" if again else "fail")
                await self._flush(number)
                if not again:
                    raise ThreadFailedError(f"{_name(number)} failed: {error}", thread=number) from error
                await self._without_slot(number, self._clock.sleep(retry_delay(failures, error)))
                failures += 1

    async def _exchange(self, request: DecodeRequest) -> None:
        """Send a request, feed its tokens to the machine, and keep its record, however it ends."""
        thread = self.machine.threads[request.thread]
        thread.begin_request(len(request.ids), self._prepared.now())
        if headers := self._observer.request(request):
            request = replace(request, headers=headers)
        finish_reason: FinishReason = "abort"  # if it is cancelled
        try:
            finish_reason = await self._decode(request)
        except Exception as error:
            finish_reason = "error"
            self._observer.request_failed(request, error)
            raise
        finally:
            thread.end_request(finish_reason, self._prepared.now())

    async def _decode(self, request: DecodeRequest) -> FinishReason:
        """Feed the machine until the request ends or is not wanted any more; returns the reason."""
        machine = self.machine
        number = request.thread
        finished = None
        async with aclosing(self._prepared.backend.decode(request)) as pieces:
            async for piece in pieces:
                finished = piece.finish_reason
                over = machine.feed(number, piece, self._prepared.now())
                if machine.dropped or machine.spawned:
                    self._drop_and_spawn()
                if machine.events:
                    await self._flush(number)
                if over or finished:
                    return finished or "abort"
        raise BackendProtocolError("the backend's stream ended without saying why")

    def _drop_and_spawn(self) -> None:
        """End the requests that the machine does not want any more, begin its new threads."""
        dropped = self.machine.dropped
        spawned = self.machine.spawned
        self.machine.dropped = []
        self.machine.spawned = []
        for number in dropped:
            task = self._tasks.get(number)
            if task and task is not asyncio.current_task():  # the current task ends by itself
                task.cancel()
        for number in spawned:
            self._begin(number)

    # Events -----------------------------------------------------------------------------------------------

    async def _flush(self, number: int) -> None:
        """Hand the events on; a thread that waits for their reader holds no slot."""
        if wait := self._hand_on():
            await self._without_slot(number, wait)

    def _hand_on(self) -> Awaitable[None] | None:
        """Hand the events on; the result is to be awaited before more is decoded."""
        events = self.machine.events
        self.machine.events = []
        return self._emit(events) if events and self._emit else None


def _name(number: int) -> str:
    return f"thread {number}" if number else "the main thread"
