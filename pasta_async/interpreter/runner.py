"""The shell around the machine: one `asyncio.Task` for each thread, requests sent, pieces moved.

The contract on cancellation (docs/interpreter.md): when `Runner.run` returns or raises, no task of the answer
is left and every request it opened is over or was aborted. An outside cancellation always wins over an error
that happens meanwhile, and is never translated.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    GenerationTimeoutError,
    PastaError,
    ThreadFailedError,
)
from pasta_async.interpreter.context import Cut, whole_ids
from pasta_async.interpreter.retry import retry_delay, with_retries
from pasta_async.observers import AnswerObserver
from pasta_async.protocol import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from pasta_async.clock import Clock
    from pasta_async.events import Event
    from pasta_async.interpreter.context import Part
    from pasta_async.interpreter.machine import Machine
    from pasta_async.interpreter.slots import Slots
    from pasta_async.limits import Limits
    from pasta_async.protocol import Backend, FinishReason, ModelInfo, Piece
    from pasta_async.results import Generation
    from pasta_async.sampling import Sampling

__all__ = ["Runner", "thread_seed"]

_FEW = 16
"""Ids of one piece that are looked at one by one where a tag ends among them; more are encoded again."""


def thread_seed(seed: int | None, thread: int) -> int | None:
    """The seed of a thread: a hash of the answer's seed and the thread's number, 31 bits."""
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{thread}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Runner:
    """Runs one answer on a backend.

    Args:
        backend: Where tokens come from; connected.
        machine: What decides.
        prompt: Token ids of the prompt.
        answer: Name of the answer, for the backend's affinity.
        info: The backend's model.
        sampling: How tokens are chosen.
        limits: Threads, time, retries.
        slots: Shared with the other answers of the client.
        clock: Time-outs are measured on it.
        began: The clock's time when the answer began.
        deadline: The clock's time at which it has to be done; None: never.
        emit: Receives events; may wait, which makes the thread that emits them wait. None: nobody listens.
        observer: Is told of turns and requests.
        parallel: False: one thread at a time, in document order.
        whole_chunks: Chunks come in one piece, where the backend can do that.
    """

    def __init__(
        self,
        backend: Backend,
        machine: Machine,
        *,
        prompt: Sequence[int],
        answer: str,
        info: ModelInfo,
        sampling: Sampling,
        limits: Limits,
        slots: Slots,
        clock: Clock,
        began: float,
        deadline: float | None = None,
        emit: Callable[[list[Event]], Awaitable[None]] | None = None,
        observer: AnswerObserver | None = None,
        parallel: bool = True,
        whole_chunks: bool = False,
    ) -> None:
        self.machine = machine
        self._backend, self._clock, self._slots = backend, clock, slots
        self._prompt, self._answer, self._info = tuple(prompt), answer, info
        self._sampling, self._limits = sampling, limits
        self._began, self._deadline, self._emit = began, deadline, emit
        self._observer = observer or AnswerObserver()
        self._parallel, self._whole_chunks = parallel, whole_chunks
        self._turns = asyncio.Semaphore(limits.max_threads if parallel else 1)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failed: dict[int, BackendError] = {}
        self._encoded: dict[Part, tuple[int, ...]] = {}
        self._group = asyncio.TaskGroup()

    async def run(self) -> Generation:
        """Decode the answer.

        Raises:
            ThreadFailedError: A thread could not be decoded.
            GenerationTimeoutError: The answer's time was up.
            asyncio.CancelledError: The caller was cancelled.

        Cancelling it ends every thread, aborts every open request and waits until that is done.
        """
        caller = asyncio.current_task()
        cancellations = caller.cancelling() if caller else 0
        try:
            async with self._group:
                await self._answer_within_time()
        except BaseExceptionGroup as group:
            if caller and caller.cancelling() > cancellations:
                raise asyncio.CancelledError from None
            error: BaseException = group.exceptions[0]  # the others followed from it
            if isinstance(error, PastaError):
                error.partial = await self._finish("error")
            raise error from error.__cause__
        return await self._finish()

    def partial(self) -> Generation:
        """The answer so far."""
        return self.machine.snapshot(self._now(), parallel=self._parallel)

    async def _answer_within_time(self) -> None:
        alarm = None if self._deadline is None else self._group.create_task(self._alarm(self._deadline))
        self._start(0)
        await self._ended(0)
        await self._settle()
        if alarm:
            alarm.cancel()

    async def _finish(self, finish_reason: FinishReason | None = None) -> Generation:
        generation = self.machine.finish(finish_reason, self._now(), parallel=self._parallel)
        await self._flush()
        return generation

    async def _alarm(self, deadline: float) -> None:
        await self._clock.sleep(deadline - self._clock.time())
        raise GenerationTimeoutError(f"the answer took longer than Limits.timeout = {self._limits.timeout} s")

    def _now(self) -> float:
        return self._clock.time() - self._began

    # Threads ----------------------------------------------------------------------------------------------

    def _start(self, number: int) -> asyncio.Task[None]:
        work = self._thread(number) if number else self._main()
        task = self._group.create_task(work, name=f"pasta {self._answer} thread {number}")
        self._tasks[number] = task
        return task

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
            machine.join(self._now())
            await self._flush()

    async def _settle(self) -> None:
        """Wait until no promise of the round is open; chunks that failed are taken up here, in order."""
        while waiting := [number for number in self.machine.open_threads if number not in self._failed]:
            await self._ended(*waiting)
        for number in self.machine.open_threads:
            await self._thread(number)

    async def _ended(self, *numbers: int) -> None:
        """Wait until these tasks are over."""
        await asyncio.wait([self._tasks[number] for number in numbers])
        for number in numbers:
            if self._tasks[number].cancelled() and self.machine.threads[number].state != "done":
                raise ThreadFailedError(f"{_name(number)} was cancelled on its own", thread=number)

    async def _thread(self, number: int) -> None:
        """Decode a thread until it is done or, main, has to wait."""
        if not self.machine.wants(number):
            return
        async with self._turn(number):
            while self.machine.wants(number):
                try:
                    await self._attempts(number)
                except BackendError as error:
                    if not self.machine.wants(number):
                        return  # it was given up, and did not end cleanly
                    if not await self._degrade(number, error):
                        raise ThreadFailedError(f"{_name(number)} failed: {error}", thread=number) from error
                    if number:
                        return  # taken up again when main waits for it

    async def _degrade(self, number: int, error: BackendError) -> bool:
        """Whether a thread that failed is taken up once more where it broke off."""
        again = self._limits.on_failure == "sequence" and number not in self._failed
        self.machine.fail(number, error, "sequence" if again else "fail")
        self._failed[number] = error
        await self._flush()
        return again

    @asynccontextmanager
    async def _turn(self, number: int) -> AsyncGenerator[None]:
        """Hold a slot of the answer and one of the client. New answers come after those that have begun."""
        begun = self.machine.main.started is not None
        self._observer.turn(number, "waiting")
        try:
            async with self._turns, self._slots.slot(0 if begun else 1):
                self._observer.turn(number, "decoding")
                yield
        finally:
            self._observer.turn(number, "over")

    # Requests ---------------------------------------------------------------------------------------------

    async def _attempts(self, number: int) -> None:
        """One request, sent again if it fails before its first token."""
        machine = self.machine
        for attempt in count():
            if not machine.wants(number):
                return
            request = await self._request(number)
            if request is None:
                return
            tokens = machine.threads[number].tokens
            try:
                await self._exchange(request)
                return
            except BackendError as error:
                started = machine.threads[number].tokens > tokens
                if started or not error.retryable or attempt >= self._limits.retries:
                    raise
                machine.fail(number, error, "retry")
                await self._flush()
                await self._clock.sleep(retry_delay(attempt, error))

    async def _exchange(self, request: DecodeRequest) -> None:
        """Send a request, decode what comes, and keep the record of it."""
        number, machine, began = request.thread, self.machine, self._now()
        thread = machine.threads[number]
        before, finish_reason, problem = thread.tokens, "abort", None
        machine.begin_request(number, len(request.ids), began)
        await self._flush()
        if headers := self._observer.request_started(request):
            request = replace(request, headers=headers)
        try:
            finish_reason = await self._decode(request)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            finish_reason, problem = (
                "error",
                BackendProtocolError("the backend cancelled the request by itself"),
            )
            raise problem from error
        except Exception as error:
            finish_reason, problem = "error", error
            raise
        finally:
            record = machine.end_request(number, began, thread.tokens - before, self._now(), finish_reason)
            self._observer.request_ended(request, record, problem)

    async def _request(self, number: int) -> DecodeRequest | None:
        """The request that decodes a thread on; None when there is no room for one more."""
        machine = self.machine
        ids = [*self._prompt]
        for part in machine.context(number):
            ids += await self._ids(part)
        max_tokens = min(machine.allowance(number), self._info.context_length - len(ids))
        if max_tokens < 1:
            machine.exhaust(number, self._now())
            await self._flush()
            return None
        stop_ids, stop_text = machine.stops(number)
        return DecodeRequest(
            answer=self._answer,
            thread=number,
            ids=tuple(ids),
            max_tokens=max_tokens,
            sampling=self._sampling,
            seed=thread_seed(self._sampling.seed, number),
            stop_ids=stop_ids,
            stop_text=stop_text,
            stream=number == 0 or not self._whole_chunks,
        )

    async def _ids(self, part: Part) -> tuple[int, ...]:
        if not isinstance(part, str | Cut):
            return part
        if part not in self._encoded:
            self._encoded[part] = await (self._encode(part) if isinstance(part, str) else self._cut(part))
        return self._encoded[part]

    async def _encode(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        return tuple(
            await with_retries(lambda: self._backend.encode(text), self._limits.retries, self._clock)
        )

    async def _detokenize(self, ids: Sequence[int]) -> str:
        return await with_retries(lambda: self._backend.detokenize(ids), self._limits.retries, self._clock)

    async def _cut(self, cut: Cut) -> tuple[int, ...]:
        few = len(cut.ids) <= _FEW
        texts = [await self._detokenize(cut.ids[: n + 1]) for n in range(len(cut.ids) if few else 0)]
        before, whole, behind = whole_ids(cut, texts)
        return (*await self._encode(before), *whole, *await self._encode(behind))

    async def _decode(self, request: DecodeRequest) -> FinishReason:
        """Feed the machine until it, or the request, ends; why the request did."""
        number, machine, finished = request.thread, self.machine, None
        async with aclosing(self._backend.decode(request)) as pieces:
            async for piece in pieces:
                if piece.finish_reason == "abort":
                    raise BackendProtocolError("the backend aborted the request unasked")
                if len(piece.ids) > (allowed := machine.allowance(number)):
                    piece = await self._shortened(number, piece, allowed)
                finished = piece.finish_reason
                stop = machine.feed(number, piece, self._now())
                if machine.dropped:
                    self._drop()
                if machine.spawned and not stop:
                    self._spawn()  # else when the request is over, and its KV in the prefix cache
                if machine.events:
                    await self._flush()
                if stop or finished:
                    break
            else:
                raise BackendProtocolError("the backend's stream ended without saying why")
        self._spawn()
        return finished or "abort"

    async def _shortened(self, number: int, piece: Piece, allowed: int) -> Piece:
        """A piece that goes over a limit, cut to it."""
        ids = piece.ids[: max(0, allowed)]
        raw = self.machine.threads[number].stretch.raw
        before, after = await self._detokenize(raw), await self._detokenize([*raw, *ids])
        return piece._replace(ids=ids, text=after[len(before) :], finish_reason="length")

    def _spawn(self) -> None:
        numbers, self.machine.spawned = self.machine.spawned, []
        for number in numbers:
            self._start(number)

    def _drop(self) -> None:
        numbers, self.machine.dropped = self.machine.dropped, []
        for number in numbers:
            task = self._tasks.get(number)
            if task and task is not asyncio.current_task():  # that one ends by itself
                task.cancel()

    async def _flush(self) -> None:
        """Hand the events on."""
        if self._emit and self.machine.events:
            batch, self.machine.events = self.machine.events, []
            await self._emit(batch)


def _name(number: int) -> str:
    return f"thread {number}" if number else "the main thread"
