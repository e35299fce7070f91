"""How parallel the answers of a client may be: full width while there is room, less as the engine fills.

A thread that decodes holds a slot of its client (`PrioritySemaphore`) and a share of its engine's room,
which `pasta_async.load` says. Here answers and threads are counted, and wait. An answer may always decode one
thread, whatever the load: main, or while main waits the first chunk that waits. So no answer starves, and no
main waits for chunks that wait for room. What there is room for beyond that goes to whoever asked first,
which is document order within an answer.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

from pasta_async.errors import BackendError
from pasta_async.load import EngineLoad, Payoff, Room, room
from pasta_async.protocol import Backend, LoadReporting
from pasta_async.results import Generation

_Turn = asyncio.Future[None]

_UNCOUNTED_STEPS = 3
"""Steps for each request for which an answer waits and no token counts: the one under way when it is asked
for, and the way to the reader and back (measured: 12 for an answer of five requests, docs/benchmarks.md;
with two, 4 answers of pasta-tiny at once come 0.94 times as soon as in sequence)."""

_LEAST_GAIN = 0.02
"""Share of the answer's time that has to be gained: less is within the error of what is reckoned."""


class WidthControl:
    """Shares what an engine has room for among the answers of a client.

    Args:
        backend: Says how busy its engine is, if it is a `LoadReporting`.
        slots: Threads that the client decodes at once, at most.
    """

    def __init__(self, backend: Backend, slots: int) -> None:
        self._reporting = backend if isinstance(backend, LoadReporting) else None
        self._engines: dict[str, _Engine] = {}
        self._payoff = Payoff()
        self._slots = room(EngineLoad(slots), self._payoff)

    @contextmanager
    def answering(self, answer: str, *, limited: bool) -> Generator[Share]:
        """Count an answer, from before it is encoded until it is over.

        Args:
            answer: Its id.
            limited: Whether the load limits it; if not, its threads only count.
        """
        share = Share(self, self._engine(""), answer, limited=limited)
        try:
            yield share
        finally:
            share.engine.leave(share)
            share.engine.admit()

    async def read(self, share: Share) -> None:
        """Have the latest load of an answer's engine; what fails is noted, and the load before it serves on.

        Cancelling it is safe.
        """
        if self._reporting is None:
            return
        before = share.engine.held
        try:
            load = await self._reporting.load(share.answer)
        except BackendError as error:
            share.trouble = f"the engine's load is not known: {error}"
            return
        if load is None:
            return
        engine = self._engine(load.engine)
        if engine is not share.engine:
            share.engine.leave(share)
            share.engine, before = engine, 0
            engine.take(share)
        engine.learn(load, before)

    def learn(self, generation: Generation) -> None:
        """Count what an answer that was decoded in parallel saved and added."""
        usage, requests = generation.usage, generation.threads[0].requests
        if requests and generation.width in ("full", "limited"):
            text = generation.text_tokens + 1  # end-of-text
            prompt = requests[0].prompt_tokens - (requests[0].cached_tokens or 0)
            least = _LEAST_GAIN * text  # tokens in sequence, each a step and a row of it
            attended = sum(
                _attended(request.prompt_tokens, request.completion_tokens)
                for thread in generation.threads
                for request in thread.requests
            )
            self._payoff.learn(
                saved=text - generation.critical_path - _UNCOUNTED_STEPS * usage.requests - least,
                added=usage.completion_tokens - text + least,
                prefilled=usage.prefilled_tokens - prompt,
                context=(1 - _LEAST_GAIN) * _attended(requests[0].prompt_tokens, text) - attended,
            )

    def _engine(self, name: str) -> _Engine:
        if name not in self._engines:
            self._engines[name] = _Engine(self._slots, self._payoff)
        return self._engines[name]


def _attended(prompt: int, tokens: int) -> float:
    """Tokens of context that so many tokens behind a prompt attend to, all together."""
    return tokens * (prompt + tokens / 2)


class Share:
    """What an answer holds of its engine's room; `WidthControl.answering` makes it.

    Args:
        control: What gave it.
        engine: Where the answer is, as far as is known.
        answer: Its id.
        limited: Whether the load limits it.
    """

    def __init__(self, control: WidthControl, engine: _Engine, answer: str, *, limited: bool) -> None:
        self._control = control
        self.engine: _Engine = engine
        self.answer: str = answer
        self.limited: bool = limited
        self.held: int = 0
        """Threads that decode."""
        self.waiting: deque[_Turn] = deque()
        """Those that wait, in document order."""
        self.trouble: str | None = None
        """Why the engine's load is not known, if that was asked for in vain."""
        engine.take(self)

    async def crowded(self) -> str | None:
        """Why the answer is not worth decoding in parallel; None if it is. Cancelling it is safe."""
        if not self.limited:
            return None
        await self._control.read(self)
        await asyncio.sleep(0)  # what begins in the same moment counts too
        for has, at_once in self.engine.rooms:
            if not has.takes(at_once):
                return f"{at_once} answers at once, and parallel decoding pays up to {has.answers:.0f} here"
        return None

    async def spare(self) -> bool:
        """Whether the engine has room for what nobody waits for. Cancelling it is safe."""
        await self._control.read(self)
        engine = self.engine
        return not engine.queue and all(has.takes(at_once) for has, at_once in engine.rooms)

    @asynccontextmanager
    async def thread(self) -> AsyncGenerator[bool]:
        """Decode a thread; gives whether it had to wait. Cancelling it gives up its place."""
        waited = await self._acquire()
        try:
            yield waited
        finally:
            self._release()

    async def _acquire(self) -> bool:
        if not self.limited:
            self.engine.grant(self)
            return False
        turn: _Turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self.engine.queue[turn] = self
        try:
            if self.held:  # else there is nothing to decide
                await self._control.read(self)
            self.engine.admit(self)
            waited = not turn.done()
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was granted in the same moment
                self._release()
            elif turn in self.waiting:
                self.waiting.remove(turn)
                del self.engine.queue[turn]
            raise
        return waited

    def _release(self) -> None:
        engine = self.engine
        engine.held -= 1
        engine.extra -= self.held > 1
        self.held -= 1
        engine.admit(self)


class _Engine:
    """The answers of a client on one engine."""

    def __init__(self, slots: Room, payoff: Payoff) -> None:
        self._slots, self._payoff = slots, payoff
        self._load: EngineLoad | None = None
        self._foreign = 0
        self._answers = 0
        self.held: int = 0
        """Threads of theirs that decode."""
        self.extra: int = 0
        """Those beside the first of each answer."""
        self.queue: dict[_Turn, Share] = {}
        """What waits, in order."""

    @property
    def rooms(self) -> list[tuple[Room, int]]:
        """What the client's slots and the engine have room for, and how many answers share it.

        On the engine each request of others counts as an answer.
        """
        found = [(self._slots, self._answers)]
        if self._load:
            found.append((room(self._load, self._payoff), self._answers + self._foreign))
        return found

    def learn(self, load: EngineLoad, before: int) -> None:
        """Take a reading, and how many threads decoded when it was asked for."""
        if load != self._load:  # what is not ours is somebody else's
            self._foreign = max(0, load.running + load.queued - max(before, self.held))
            self._load = load

    def take(self, share: Share) -> None:
        self._answers += 1
        self.held += share.held
        self.extra += max(0, share.held - 1)
        self.queue |= dict.fromkeys(share.waiting, share)

    def leave(self, share: Share) -> None:
        self._answers -= 1
        self.held -= share.held
        self.extra -= max(0, share.held - 1)
        for turn in share.waiting:
            del self.queue[turn]

    def admit(self, share: Share | None = None) -> None:
        """Let threads decode: of this answer one in any case, of all answers as many as there is room for."""
        while share and share.waiting and not share.held:
            self.grant(share)
        if self.queue:
            extra = min(room.extra(at_once) for room, at_once in self.rooms)
            while self.queue and self.extra + 1 <= extra:
                self.grant(next(iter(self.queue.values())))

    def grant(self, share: Share) -> None:
        """Count one more thread of an answer, the first that waits if one does."""
        if share.waiting:
            turn = share.waiting.popleft()
            del self.queue[turn]
            if turn.done():  # cancelled
                return
            turn.set_result(None)
        self.held += 1
        self.extra += share.held > 0
        share.held += 1


class PrioritySemaphore:
    """A semaphore whose waiters are served by priority, then by arrival.

    Threads of answers that have begun go before new answers: else mains that hold every slot and wait for
    their chunks would starve them. Cancelling a waiter takes it out of the queue.
    """

    def __init__(self, total: int) -> None:
        self._free = total
        self._order = count()
        self._waiting: list[tuple[int, int, _Turn]] = []

    @asynccontextmanager
    async def slot(self, priority: int = 0) -> AsyncGenerator[None]:
        """Hold a slot; the lowest `priority` goes first."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn: _Turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was handed a slot in the same moment
                self._release()
            turn.cancel()
            raise

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
