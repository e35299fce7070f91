"""How parallel the answers of a client may be: full width while there is room, less as the engine fills.

A thread that decodes holds a slot of its client and a share of its engine's room, which `pasta_async.load`
says. Here answers and threads are counted, and wait. Each answer may decode one thread whatever the load:
main, or while main waits the first chunk that waits. So no main waits for chunks that wait for room. Threads
beside that one take only slots that no answer needs, so a new answer waits for a chunk at most; and where the
load limits their answer, only what its engine has room for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from math import inf

from pasta_async.clock import Clock
from pasta_async.errors import BackendError
from pasta_async.load import ALWAYS_ANSWERS, MOST_ANSWERS, EngineLoad, Payoff, Room, room
from pasta_async.protocol import Backend, LoadReporting
from pasta_async.results import Generation

_Turn = asyncio.Future[None]

_UNCOUNTED_STEPS = 3
"""Steps for each request for which an answer waits and no token counts: the one under way when it is asked
for, and the way to the reader and back (measured: 12 for an answer of five requests, docs/benchmarks.md;
with two, 4 answers of pasta-tiny at once come 0.94 times as soon as in sequence)."""

_LEAST_GAIN = 0.02
"""Share of the answer's time that has to be gained: less is within the error of what is reckoned."""

_KEEP_SECONDS = 5.0
"""How long a reading serves on while none can be taken; no more is known of the engine then."""

_AGAIN_SECONDS = 0.5
"""While threads wait for room the load is read this often, once for all of them."""

_ENDLESS = Room(inf, inf)
_EXPECTED = Payoff()
"""What is expected of answers before any is known."""


class WidthControl:
    """Shares what an engine has room for among the answers of a client, of at most `slots` threads at once.

    The backend says how busy its engine is, if it is a `LoadReporting`.
    """

    def __init__(self, backend: Backend, slots: int, clock: Clock) -> None:
        self._reporting = backend if isinstance(backend, LoadReporting) else None
        self._clock = clock
        self._engines: dict[str, _Engine] = {}
        self._payoff = Payoff()
        self._slots = Room(max(ALWAYS_ANSWERS, MOST_ANSWERS * slots), slots)
        self.queue: dict[_Turn, Share] = {}
        """Threads that wait, in order."""
        self._watched = 0
        self._watch: asyncio.Task[None] | None = None

    @contextmanager
    def answering(self, answer: str, *, limited: bool) -> Generator[Share]:
        """Count an answer, from before it is encoded until it is over, whether the load limits it or not."""
        share = Share(self, self._engine(""), answer, limited=limited)
        try:
            yield share
        finally:
            share.engine.count(share, -1)
            self.admit()

    async def read(self, share: Share) -> None:
        """Have the latest load of an answer's engine.

        What fails is noted, and the load before it serves on for a while. Cancelling it is safe.
        """
        engine = await self._latest(share)
        if engine is not share.engine:
            share.engine.count(share, -1)
            share.engine = engine
            engine.count(share, 1)

    async def _latest(self, share: Share) -> _Engine:
        """Read the load of an answer's engine; gives which that is."""
        before, held = share.engine, share.engine.held
        if self._reporting is None:
            return before
        try:
            load = await self._reporting.load(share.answer)
        except BackendError as error:
            share.trouble = f"the engine's load is not known: {error}"
            return share.engine
        if load is None:
            share.trouble = "the engine does not tell its load"
            before.forget()
            return share.engine
        engine = self._engine(load.engine)
        engine.learn(load, held if engine is before else 0, self._clock.time() + _KEEP_SECONDS)
        return engine

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Have the load read again from time to time, by one task for all who are in such a block."""
        self._watched += 1
        watch = self._watch = self._watch or asyncio.create_task(self._read_again(), name="pasta load")
        try:
            yield
        finally:
            self._watched -= 1
            if not self._watched:
                self._watch = None
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    async def _read_again(self) -> None:
        while True:
            await self._clock.sleep(_AGAIN_SECONDS)
            for share in {share.engine: share for share in self.queue.values() if share.limited}.values():
                await self._latest(share)
            self.admit()

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

    def refuse(self, engine: _Engine) -> str | None:
        """Why a new answer is to have no tags; None if it is to have them, for a trial perhaps."""
        crowd = self.crowd(engine, self._payoff)
        tried = crowd and not self.crowd(engine, _EXPECTED) and not self._payoff.refuse()
        return None if tried else crowd

    def crowd(self, engine: _Engine, payoff: Payoff | None = None) -> str | None:
        """Why one more answer is not worth decoding in parallel on an engine; None if it is."""
        for has, at_once in ((self._slots, self._answers), self._room(engine, payoff or self._payoff)):
            if not has.takes(at_once):
                return f"{at_once} answers at once, and parallel decoding pays up to {has.answers:.0f} here"
        return None

    def is_full(self, engine: _Engine) -> bool:
        """Whether an engine has no room for a thread beside the first of each answer."""
        has, at_once = self._room(engine, self._payoff)
        return engine.extra + 1 > has.extra(at_once)

    def shortage(self, engine: _Engine) -> str:
        """Why threads of an answer that the load limits wait for room."""
        slots = self._slots, self._answers
        has, at_once = self._room(engine, self._payoff) if self.is_full(engine) else slots
        return f"{at_once} answers at once, and there is room for {has.threads:.0f} threads here"

    def admit(self) -> None:
        """Let threads decode, as many as there are slots and room for."""
        engines = self._engines.values()
        while sum(engine.held for engine in engines) < self._slots.threads and (share := self._next()):
            turn = share.waiting.popleft()
            del self.queue[turn]
            if not turn.done():  # else it was cancelled meanwhile
                turn.set_result(None)
                share.hold(1)

    def _next(self) -> Share | None:
        """Whose thread decodes next: that of an answer that stands still, of a new one, or one beside others.

        Among equals, of who asked first, which within an answer is document order.
        """
        waiting = dict.fromkeys(self.queue.values())
        idle = [share for share in waiting if not share.held]
        if idle:
            return next((share for share in idle if share.begun), idle[0])
        engines = self._engines.values()
        if sum(engine.extra for engine in engines) + 1 > self._slots.extra(self._answers):
            return None
        full = {engine for engine in engines if self.is_full(engine)}
        return next((share for share in waiting if not (share.limited and share.engine in full)), None)

    @property
    def _answers(self) -> int:
        return sum(engine.answers for engine in self._engines.values())

    def _room(self, engine: _Engine, payoff: Payoff) -> tuple[Room, int]:
        """What an engine has room for, and how many answers share it, requests of others among them."""
        if self._reporting is None:
            return _ENDLESS, 0
        if self._clock.time() > engine.until:
            engine.forget()
        return room(engine.load, payoff), engine.answers + engine.foreign

    def _engine(self, name: str) -> _Engine:
        return self._engines.setdefault(name, _Engine())


def _attended(prompt: int, tokens: int) -> float:
    """Tokens of context that so many tokens behind a prompt attend to, all together."""
    return tokens * (prompt + tokens / 2)


@dataclass(slots=True, eq=False)
class Share:
    """What an answer holds of its engine's room; `WidthControl.answering` makes it."""

    control: WidthControl
    engine: _Engine
    """Where the answer is, as far as is known."""
    answer: str
    """Its id."""
    limited: bool
    """Whether the load limits it."""
    begun: bool = False
    """Whether a thread of it has decoded."""
    held: int = 0
    """Threads that decode."""
    waiting: deque[_Turn] = field(default_factory=deque[_Turn])
    """Those that wait, in document order."""
    trouble: str | None = None
    """Why the engine's load is not known, if that was asked for in vain."""

    def __post_init__(self) -> None:
        self.engine.count(self, 1)

    async def crowded(self) -> str | None:
        """Why the answer is not worth decoding in parallel; None if it is. Cancelling it is safe."""
        if not self.limited:
            return None
        await self.control.read(self)
        await asyncio.sleep(0)  # what begins in the same moment counts too
        return self.control.refuse(self.engine)

    @asynccontextmanager
    async def thread(self) -> AsyncGenerator[str | None]:
        """Decode a thread; gives why it had to wait for room, if so. Cancelling it gives up its place."""
        waited = await self._acquire()
        try:
            yield waited
        finally:
            self._release()

    async def _acquire(self) -> str | None:
        control, turn = self.control, asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        control.queue[turn] = self
        try:
            if self.limited and self.held:  # else there is nothing to decide
                await control.read(self)
            control.admit()
            waited = None
            if self.limited and self.held and not turn.done():
                waited = control.shortage(self.engine)
                async with control.watched():
                    await turn
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was granted in the same moment
                self._release()
            elif turn in self.waiting:
                self.waiting.remove(turn)
                del control.queue[turn]
            raise
        return waited

    def _release(self) -> None:
        self.hold(-1)
        self.control.admit()

    def hold(self, change: int) -> None:
        """Count threads that begin to decode, or, negative, that ended."""
        self.begun = True
        self.engine.count(self, -1)
        self.held += change
        self.engine.count(self, 1)


@dataclass(slots=True, eq=False)
class _Engine:
    """What a client has on an engine, and what others have."""

    load: EngineLoad | None = None
    until: float = 0.0
    """The clock's time until which that serves."""
    foreign: int = 0
    """Requests of others."""
    answers: int = 0
    held: int = 0
    """Threads of theirs that decode."""
    extra: int = 0
    """Those beside the first of each answer."""

    def count(self, share: Share, sign: int) -> None:
        """Add an answer, or take one away."""
        self.answers += sign
        self.held += sign * share.held
        self.extra += sign * max(0, share.held - 1)

    def learn(self, load: EngineLoad, before: int, until: float) -> None:
        """Take a reading, how many threads decoded when it was asked for, and until when it serves."""
        if load != self.load:  # what is not ours is somebody else's
            self.foreign = max(0, load.running + load.queued - max(before, self.held))
        self.load, self.until = load, until

    def forget(self) -> None:
        """Nothing is known of its load any more."""
        self.load, self.foreign = None, 0
