"""A backend that takes the time an engine would take, on a virtual clock, and computes nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.protocol import ModelInfo, Piece
from pasta_async.testing import VirtualClock, WordTokenizer
from pasta_async.testing.backend import PrefixTree
from pasta_async.testing.tokenizer import Chat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from pasta_async.clock import Clock
    from pasta_async.evals.simulator.model import EngineModel
    from pasta_async.protocol import DecodeRequest, FinishReason, Message
    from pasta_async.testing import Tokenizer

__all__ = ["SimulatedBackend"]


class SimulatedBackend:
    """Engines with continuous batching and a prefix cache each; every request has to be forced.

    Each step takes what the model says for the requests that are in it. Prompts are computed a part at a time
    beside the decoding. Answers go to the engines in turn, all requests of one to the same; each engine
    has a client process of its own.

    Args:
        model: How long steps take, and the client's work.
        engines: GPUs, each with all the weights.
        tokenizer: A `WordTokenizer` unless given.
        max_running: Requests of one engine that decode at the same time; the others wait.
        clock: A new `VirtualClock` unless given.
    """

    def __init__(
        self,
        model: EngineModel,
        *,
        engines: int = 1,
        tokenizer: Tokenizer | None = None,
        max_running: int = 256,
        clock: Clock | None = None,
    ) -> None:
        self.clock: Clock = clock or VirtualClock()
        self.model: EngineModel = model
        self._tokenizer = tokenizer or WordTokenizer()
        self._chat = Chat(self._tokenizer)
        self._tags = frozenset(self._tokenizer.tags or ())
        self._engines = [_Engine(model, self.clock, max_running) for _ in range(engines)]
        self._engine_of: dict[str, _Engine] = {}
        self._info = ModelInfo(
            name="simulated",
            context_length=2**31,
            vocab_size=self._chat.vocab_size,
            end_ids=(self._tokenizer.end_id,),
            tags=self._tokenizer.tags,
            honours_seeds=True,
        )

    async def connect(self) -> ModelInfo:
        """What the simulated model is. Never waits."""
        return self._info

    async def encode(self, text: str) -> list[int]:
        """Encode text as data. Never waits."""
        return self._tokenizer.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages, with a marker around each. Never waits."""
        return self._chat.encode(messages, plain=template_kwargs.get("pasta", True) is False)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids. Never waits."""
        return self._chat.decode(ids)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Play a forced request in the time it would take; closing it early takes it out of its batch.

        Raises:
            InvalidRequestError: It is not forced: a simulated engine has nothing to say.
            BackendError: The backend was closed.
        """
        if not request.extra.get("forced"):
            raise InvalidRequestError(
                "a simulated engine writes nothing of its own: force it (ForcedBackend)"
            )
        turn = self._engines[len(self._engine_of) % len(self._engines)]
        engine = self._engine_of.setdefault(request.answer, turn)
        sent = engine.client.work(self.model.request.value)
        await self.clock.sleep(sent + self.model.round_trip.value - self.clock.time())
        job = _Job(request, {*request.stop_ids, *self._info.end_ids})
        engine.add(job)
        try:
            finish_reason = None
            while finish_reason is None:
                token, finish_reason, due = await job.next()
                if (wait := due - self.clock.time()) > 0:
                    await self.clock.sleep(wait)
                text = "" if token in self._info.end_ids else self._tokenizer.decode([token])
                yield Piece((token,), text, finish_reason, len(request.ids), job.cached)
        finally:
            engine.remove(job)

    async def aclose(self) -> None:
        """End every open request with an error."""
        for engine in self._engines:
            engine.close()


class _Client:
    """What reads and asks, doing one thing after another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.free = 0.0
        """When it is done with all it has to do."""

    def work(self, seconds: float) -> float:
        """Add to that; when it will be done."""
        self.free = max(self.free, self._clock.time()) + seconds
        return self.free


class _Job:
    """A request in an engine."""

    def __init__(self, request: DecodeRequest, ends: set[int]) -> None:
        self.request = request
        self.ids = request.ids
        self.cached = 0
        self.missing = len(request.ids)
        """Prompt tokens that are still to be computed."""
        self.out: list[int] = []
        self._ends = ends
        self._ready: deque[tuple[int, FinishReason | None, float]] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def write(self, due: float) -> bool:
        """Decode a token, which the client gets to when it is due; whether it was the last."""
        forced = self.request.extra["forced"]
        token = forced[len(self.out)]
        self.out.append(token)
        finish_reason: FinishReason | None = "stop" if token in self._ends else None
        if finish_reason is None and len(self.out) in (self.request.max_tokens, len(forced)):
            finish_reason = "length"
        self._ready.append((token, finish_reason, due))
        self._news.set()
        return finish_reason is not None

    async def next(self) -> tuple[int, FinishReason | None, float]:
        while not self._ready:
            if self._closed:
                raise BackendError("simulated: the backend was closed")
            self._news.clear()
            await self._news.wait()
        return self._ready.popleft()

    def close(self) -> None:
        self._closed = True
        self._news.set()


class _Engine:
    """One engine: a batch, a queue, a prefix cache, and a task while there is anything to do."""

    def __init__(self, model: EngineModel, clock: Clock, max_running: int) -> None:
        self._model, self._clock = model, clock
        self.client = _Client(clock)
        self._max_running = max_running
        self._cache = PrefixTree()
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, job: _Job) -> None:
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pasta simulated engine")

    def remove(self, job: _Job) -> None:
        """Let a job go; what it computed stays in the cache."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._running:
            self._running.remove(job)
            self._keep(job)
        if not self._waiting and not self._running and self._task:
            self._task.cancel()

    def close(self) -> None:
        for job in (*self._waiting, *self._running):
            job.close()
        self._waiting.clear()
        self._running.clear()
        if self._task:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting or self._running:
            self._admit()
            decoding = [job for job in self._running if not job.missing]
            parts = self._parts(self._model.step_tokens)
            tokens = sum(len(job.ids) + len(job.out) for job in decoding)
            prefilled = sum(count for _, count in parts)
            await self._clock.sleep(self._model.seconds(len(decoding), tokens, prefilled))
            for job, count in parts:
                job.missing -= count
                if not job.missing:
                    self._cache.add(job.ids)
                    decoding.append(job)
            due = self.client.work(self._model.token.value * len(decoding))
            for job in decoding:
                if job in self._running and job.write(due):
                    self._running.remove(job)
                    self._keep(job)
            if self._model.embedded and (wait := self.client.free - self._clock.time()) > 0:
                await self._clock.sleep(wait)

    def _parts(self, budget: int) -> list[tuple[_Job, int]]:
        """The prompts that are computed in this step, as far as they go."""
        parts = list[tuple[_Job, int]]()
        for job in self._running:
            if job.missing and budget:
                parts.append((job, min(job.missing, budget)))
                budget -= parts[-1][1]
        return parts

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            job = self._waiting.popleft()
            for other in self._running if self._model.embedded else ():
                if other.request.answer == job.request.answer and not other.missing:
                    self._keep(other)
            job.cached = min(self._cache.match(job.ids), len(job.ids) - 1)
            job.missing = len(job.ids) - job.cached
            self._running.append(job)

    def _keep(self, job: _Job) -> None:
        """The last token was never fed in, so it has no KV."""
        if not job.missing:
            self._cache.add((*job.ids, *job.out[:-1]))
