"""The order in which threads decode: the slots of a client, and the room on its engine.

A thread that decodes holds one of the client's slots (`Limits.client_threads`). Each answer may have one
thread under way whatever the load: its main thread or, while that waits, its first chunk. So no main thread
waits for chunks that wait for room. Threads beside that one take only slots that no answer needs. So a new
answer waits for the end of one chunk at most. Where the load limits their answer (`parallel="auto"`), they
also wait for room on the engine (`pasta_async.engine_load.room`).

A thread that waits for its reader, or to send a request again, gives its slot back meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from math import inf

from pasta_async.engine_load import LIGHT_THREADS, EngineLoad, room
from pasta_async.errors import BackendError

_CACHE_IS_FULL = "requests hold nearly all of the engine's KV cache"


class Admission:
    """The slots of a client, and the threads that wait for one.

    Args:
        slots: Threads over all answers that decode at once.
        load: Reads how busy the engine is (`pasta_async.protocol.Backend.load`).
    """

    def __init__(self, slots: int, load: Callable[[], Awaitable[EngineLoad | None]]) -> None:
        self._slots = slots
        self._load = load
        self._answers: list[AnswerSlots] = []
        self._waiting: dict[asyncio.Future[None], Slot] = {}  # in order of asking
        self._latest: EngineLoad | None = None
        self._foreign = 0  # requests of other clients on the engine

    @contextmanager
    def answer(self, *, limited: bool) -> Generator[AnswerSlots]:
        """Count an answer, from before its prompt is encoded until it is over.

        Args:
            limited: True if the load limits the number of its threads.
        """
        slots = AnswerSlots(self, limited=limited)
        self._answers.append(slots)
        try:
            yield slots
        finally:
            self._answers.remove(slots)
            self.admit()

    async def _read_load(self, answer: AnswerSlots) -> None:
        """Read the engine's load; if that fails, the answer gets the reason. Cancelling it is safe."""
        requests_before = self._requests
        try:
            load = await self._load()
        except BackendError as error:
            answer.trouble = f"the engine's load is not known: {error}"
            self._latest = EngineLoad(capacity=LIGHT_THREADS)
            self._foreign = 0
            return
        if load is None:
            self._foreign = 0
        elif load is not self._latest:  # a backend may give one reading to several callers
            # The engine's requests less our own are those of others. Some of our own may have begun or ended
            # while the load was read, so the larger count of them is taken off.
            self._foreign = max(0, load.running + load.queued - max(requests_before, self._requests))
        self._latest = load

    async def reason_for_no_tags(self, answer: AnswerSlots) -> str | None:
        """The reason not to decode an answer in parallel; None if it is worth it. Cancelling it is safe.

        There is room if each answer, the new one counted, could have a second thread.
        """
        if not answer.limited:
            return None
        await self._read_load(answer)
        await asyncio.sleep(0)  # answers that begin in the same moment count too
        if 2 * self._active > self._slots:
            return f"{self._active} answers at once, and client_threads is {self._slots}: each would need two"
        answers = self._active + self._foreign
        if not self._room:
            return _CACHE_IS_FULL
        if 2 * answers > self._room:
            return f"{answers} answers at once, and parallel decoding pays up to {int(self._room / 2)} here"
        return None

    async def take(self, slot: Slot) -> None:
        """Wait until a slot is granted. Cancelling it gives up the place in the queue."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting[granted] = slot
        try:
            if slot.needs_room and slot.answer.held:  # else it needs no room, whatever the load
                await self._read_load(slot.answer)
            self.admit()
            if slot.needs_room and slot.answer.held and not granted.done():
                answers = self._active + self._foreign
                threads = min(self._slots, self._room)
                full = f"{answers} answers at once, and room for {threads:.0f} threads"
                slot.waited = full if threads else _CACHE_IS_FULL
            await granted
        except BaseException:
            self._waiting.pop(granted, None)
            self.give_back(slot)  # it may have been granted in the moment of the cancellation
            raise

    def give_back(self, slot: Slot) -> None:
        """Let other threads have a slot; nothing happens if it is not held."""
        if slot.held:
            slot.held = False
            slot.answer.held -= 1
            self.admit()

    def admit(self) -> None:
        """Grant the free slots to the threads that are next."""
        while self._held < self._slots and (granted := self._next_to_admit()):
            slot = self._waiting.pop(granted)
            if not granted.done():  # a thread that is being cancelled takes none
                granted.set_result(None)
                slot.held = True
                slot.answer.held += 1
                slot.answer.begun = True

    def _next_to_admit(self) -> asyncio.Future[None] | None:
        """The future of the thread that gets the next slot; None if no thread that waits may have one.

        Among equals it is that of the thread that asked first: within an answer, document order.
        """
        # First come answers without any slot: each may have one thread whatever the load. Among them, answers
        # that have begun go before new ones.
        idle = [granted for granted, slot in self._waiting.items() if not slot.answer.held]
        if idle:
            return next((granted for granted in idle if self._waiting[granted].answer.begun), idle[0])
        # Every active answer keeps a slot in reserve; further threads share the rest.
        extra = sum(max(0, answer.held - 1) for answer in self._answers)
        if self._active + extra >= self._slots:
            return None
        # While the engine has no room, threads that need it go on waiting and others pass them.
        full = self._active + extra + self._foreign >= self._room
        return next(
            (granted for granted, slot in self._waiting.items() if not (full and slot.needs_room)), None
        )

    @property
    def _room(self) -> float:
        """Threads that the engine has room for, by its latest load; any number if it tells none."""
        return inf if self._latest is None else room(self._latest, self._active + self._foreign)

    @property
    def _held(self) -> int:
        return sum(answer.held for answer in self._answers)

    @property
    def _requests(self) -> int:
        """Our own requests on the engine: those of threads that wait for their readers run on."""
        return sum(answer.held + answer.paused for answer in self._answers)

    @property
    def _active(self) -> int:
        """Answers that use the engine, or are about to: not those whose threads all wait for readers."""
        return sum(answer.held > 0 or answer.paused == 0 for answer in self._answers)


class AnswerSlots:
    """The slots that one answer holds.

    Attributes:
        limited: True if the load limits their number.
        held: The number of slots that decoding threads hold.
        paused: Threads without a slot that wait for their reader, or to send a request again.
        begun: True once a thread of the answer has had a slot.
        trouble: The reason why the engine's load is not known, if it could not be read for this answer.
    """

    def __init__(self, admission: Admission, *, limited: bool) -> None:
        self.admission: Admission = admission
        self.limited: bool = limited
        self.held: int = 0
        self.paused: int = 0
        self.begun: bool = False
        self.trouble: str | None = None

    @asynccontextmanager
    async def thread(self) -> AsyncGenerator[Slot]:
        """Hold a slot while a thread decodes. Cancelling it gives up the slot, or the place in the queue."""
        slot = Slot(self)
        await self.admission.take(slot)
        try:
            yield slot
        finally:
            self.admission.give_back(slot)

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        """Wait for a reader or a retry without a slot.

        If nothing of the answer decodes, others have its room.
        """
        self.paused += 1
        self.admission.admit()
        try:
            yield
        finally:
            self.paused -= 1


class Slot:
    """The slot of one thread.

    Attributes:
        held: True while the thread has it.
        waited: The reason why a thread beside the answer's first had to wait for room on the engine or for a
            slot of the client, if it had to.
        needs_room: True if the thread waits until the engine has room for it.
    """

    def __init__(self, answer: AnswerSlots) -> None:
        self.answer: AnswerSlots = answer
        self.held: bool = False
        self.waited: str | None = None
        self.needs_room: bool = answer.limited

    @asynccontextmanager
    async def released(self) -> AsyncGenerator[None]:
        """Wait for a reader or a retry without the slot, and take one again afterwards.

        The thread's request may still be open, so it needs no room on the engine when it goes on. Cancelling
        it leaves the thread without a slot.
        """
        self.answer.admission.give_back(self)
        async with self.answer.pause():
            yield
        self.needs_room = False
        await self.answer.admission.take(self)
