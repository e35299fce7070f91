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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from pasta_async.clock import Clock, time_limit
from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    PastaError,
    ThreadFailedError,
)
from pasta_async.events import Emit, Event, emit_last
from pasta_async.interpreter.admission import AnswerSlots, Slot
from pasta_async.interpreter.machine import Machine
from pasta_async.interpreter.state import RequestLog
from pasta_async.observers import AnswerObserver, AnswerStart
from pasta_async.protocol import Backend, DecodeRequest, Model, Piece
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
    slot_of: dict[int, Slot] = field(default_factory=dict[int, Slot])
    """The slots that are held, by the number of the thread."""

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
                self.slot_of[number] = slot
                yield slot
        finally:
            self.slot_of.pop(number, None)
            self.observer.thread_state(number, "over")

    async def without_slot(self, number: int, wait: Awaitable[None]) -> None:
        """Wait for a reader or a retry; meanwhile another thread, or answer, may have its slot of the client.

        It keeps its place among `Limits.max_threads`.
        """
        if number not in self.slot_of:
            async with self.slots.pause():
                await wait
            return
        self.observer.thread_state(number, "waiting")
        async with self.slot_of[number].released():
            await wait
        self.observer.thread_state(number, "decoding")

    async def exchange(
        self,
        record: RequestLog,
        request: DecodeRequest,
        feed: Callable[[Piece], Awaitable[FinishReason | None]],
    ) -> FinishReason:
        """Send a request, and keep its record, however it ends.

        `feed` takes each piece; it returns the reason to end the request, None to go on.

        Raises:
            BackendError: It failed, or its stream ended without a reason.
        """
        record.begin_request(len(request.ids), self.now())
        if headers := self.observer.request(request):
            request = replace(request, headers=headers)
        finish_reason: FinishReason = "abort"  # if it is cancelled
        try:
            async with aclosing(self.backend.decode(request)) as pieces:
                async for piece in pieces:
                    if reason := await feed(piece):
                        finish_reason = reason
                        return reason
            raise BackendProtocolError("the backend's stream ended without saying why")
        except Exception as error:
            finish_reason = "error"
            self.observer.request_failed(request, error)
            raise
        finally:
            record.end_request(finish_reason, self.now())


@asynccontextmanager
async def limited_group(prepared: Prepared, work: str) -> AsyncGenerator[asyncio.TaskGroup]:
    """A group of tasks that has to be done by the deadline; `work` names it in the error.

    Raises:
        asyncio.CancelledError: The caller was cancelled. That wins over an error.
        GenerationTimeoutError: The time was up.
        Exception: The first error of the block or of a task; the others followed from it.
    """
    caller = asyncio.current_task()
    cancellations = caller.cancelling() if caller else 0
    try:
        async with asyncio.TaskGroup() as group, time_limit(prepared.clock, prepared.deadline, work):
            yield group
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

    def __init__(self, prepared: Prepared, emit: Emit[Event] | None) -> None:
        self.machine: Machine = Machine(
            prepared.model,
            prepared.tags,
            prepared.start,
            prompt=prepared.prompt,
            listen=emit is not None,
            notes=prepared.notes,
        )
        self._prepared = prepared
        self._emit = emit
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> Generation:
        """Decode the answer.

        Raises:
            ThreadFailedError: A thread could not be decoded.
            GenerationTimeoutError: The answer's time was up.
            asyncio.CancelledError: The caller was cancelled.

        Cancelling it ends every thread, aborts every open request and waits until that is done.
        """
        try:
            async with limited_group(self._prepared, "the answer") as self._group:
                self._begin(0)
                await self._ended(0)
                await self._settle()
        except PastaError as error:
            error.partial = self._finish("error")
            raise
        return self._finish()

    def partial(self) -> Generation:
        """The answer so far."""
        return self.machine.transcript.generation(self._prepared.now())

    def _finish(self, finish_reason: FinishReason | None = None) -> Generation:
        if trouble := self._prepared.slots.trouble:
            self.machine.transcript.notes += (trouble,)
        generation = self.machine.finish(finish_reason, self._prepared.now())
        emit_last(self._emit, self.machine.events)
        return generation

    # Threads ----------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        work = self._thread(number) if number else self._main()
        name = f"pasta {self._prepared.start.answer} thread {number}"
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
            await self._send_requests(number)

    # Requests ---------------------------------------------------------------------------------------------

    async def _send_requests(self, number: int) -> None:
        """Send a thread's requests. After a failure that may pass it goes on where it broke off."""
        machine = self.machine
        prepared = self._prepared
        failures = 0
        while machine.wants(number):
            request = machine.request(number, prepared.now())
            await self._flush(number)
            if request is None:
                return
            try:
                await prepared.exchange(machine.threads[number], request, partial(self._feed, number))
            except BackendError as error:
                if not machine.wants(number):
                    return  # the thread is done, so the error of its aborted request does not matter
                again = error.retryable and failures < prepared.start.limits.retries
                machine.fail(number, error, "retry" if again else "fail")
                await self._flush(number)
                if not again:
                    raise ThreadFailedError(f"{_name(number)} failed: {error}", thread=number) from error
                await prepared.without_slot(number, prepared.clock.sleep(retry_delay(failures, error)))
                failures += 1

    async def _feed(self, number: int, piece: Piece) -> FinishReason | None:
        """Feed the machine; returns the reason to end the request: `abort` if it is not wanted any more."""
        machine = self.machine
        over = machine.feed(number, piece, self._prepared.now())
        if machine.dropped or machine.spawned:
            self._drop_and_spawn()
        if machine.events:
            await self._flush(number)
        return piece.finish_reason or ("abort" if over else None)

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
        events = self.machine.events
        self.machine.events = []
        if events and self._emit and (wait := self._emit(events)):
            await self._prepared.without_slot(number, wait)


def _name(number: int) -> str:
    return f"thread {number}" if number else "the main thread"
