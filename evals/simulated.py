"""An engine on a virtual clock: a backend whose steps take the time that an `EngineModel` says."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError
from pasta_async.protocol import Piece
from pasta_async.testing import ScriptedBackend, VirtualClock
from pasta_async.testing.backend import PrefixCache

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from pasta_async.clock import Clock
    from pasta_async.protocol import DecodeRequest, FinishReason, TagIds
    from pasta_async.testing import Tokenizer

__all__ = ["CONSTANTS", "EngineModel", "SimulatedBackend"]

CONSTANTS = ("step", "sequence", "context", "prefill", "round_trip", "token", "request")


class EngineModel(BaseModel):
    """A step takes step + sequence x requests + context x their tokens + prefill x tokens computed anew.

    Linear, since decoding is bound by memory: the weights are read once for a step, and each request's KV
    besides. Not in it: the end of the KV memory, kernels that change with the batch, and prefills in batches
    of their own. A client does its own work besides, one thing after another; beside an embedded engine that
    delays the next step, elsewhere what the client sees of it. Constants are in seconds.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    step: float = Field(ge=0, description="whatever is decoded: above all, reading the weights")
    sequence: float = Field(default=0.0, ge=0, description="for each request in the batch")
    context: float = Field(default=0.0, ge=0, description="for each token of their contexts")
    prefill: float = Field(default=0.0, ge=0, description="for each prompt token that the cache lacks")
    round_trip: float = Field(default=0.0, ge=0, description="client to engine and back, once a request")
    token: float = Field(default=0.0, ge=0, description="the client's work for each token")
    request: float = Field(default=0.0, ge=0, description="the client's work for each request")
    embedded: bool = Field(
        default=False,
        description="engine and client share a process, and a fork finds the KV of threads that still run",
    )
    step_tokens: int = Field(default=2048, ge=1, description="prompt tokens that are computed in one step")
    max_running: int = Field(default=256, ge=1, description="requests of one engine that decode at a time")
    gpus: int = Field(default=1, ge=1, description="engines, each with all the weights")
    tokenizer: str | None = Field(default=None, description="a model folder; without it, words are counted")
    assumed: tuple[str, ...] = Field(default=CONSTANTS, description="constants that no engine was timed for")

    def seconds(self, requests: int, tokens: int, prefilled: int) -> float:
        """How long a step takes that decodes so many requests, of so many tokens of context all in all."""
        decoding = self.step + self.sequence * requests + self.context * tokens
        return decoding + self.prefill * prefilled

    def __str__(self) -> str:
        """Engines and constants, in milliseconds; those that were not measured are marked as ASSUMED."""
        constants = [
            f"{name} {1000 * getattr(self, name):.4g}" + " (ASSUMED)" * (name in self.assumed)
            for name in CONSTANTS
        ]
        return f"{self.gpus} engines; constants, ms: {', '.join(constants)}"

    @classmethod
    def load(cls, place: str) -> EngineModel:
        """Read what `simulator` wrote; `FILE?gpus=8&step=0.01` sets other values, which then are assumed.

        Raises:
            InvalidRequestError: The file is something else, or a value does not fit.
        """
        name, _, query = place.partition("?")
        try:
            values = dict(parse_qsl(query, strict_parsing=True)) if query else {}
            model = cls.model_validate_json(Path(name).read_text(encoding="utf-8"))
            assumed = (*model.assumed, *(one for one in CONSTANTS if one in values))
            return cls.model_validate({**model.model_dump(), **values, "assumed": assumed})
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"{place} holds no engine model: {error}") from error


class SimulatedBackend(ScriptedBackend):
    """Engines with continuous batching and a prefix cache each; every request has to be forced.

    Each step takes what the model says for the requests that are in it. Prompts are computed a part at a time
    beside the decoding. Answers go to the engines in turn, all requests of one to the same; each engine
    has a client process of its own.

    Args:
        model: How long steps take, the client's work, how many engines there are.
        tokenizer: In place of the one that the model names.
    """

    def __init__(self, model: EngineModel, tokenizer: Tokenizer | None = None) -> None:
        if model.tokenizer and tokenizer is None:
            tokenizer = _FolderTokenizer(model.tokenizer)
        clock = VirtualClock()
        super().__init__(
            "", tokenizer=tokenizer, clock=clock, context_length=2**31, name="simulated", record=False
        )
        self.model: EngineModel = model
        self._engines = [_Engine(model, clock) for _ in range(model.gpus)]
        self._engine_of: dict[str, _Engine] = {}

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Play a forced request in the time it would take; closing it early takes it out of its batch.

        Raises:
            InvalidRequestError: It is not forced: a simulated engine writes nothing of its own.
            BackendError: The backend was closed.
        """
        if not request.extra.get("forced"):
            raise InvalidRequestError("a simulated engine writes nothing of its own: use a ForcedBackend")
        turn = self._engines[len(self._engine_of) % len(self._engines)]
        engine = self._engine_of.setdefault(request.answer, turn)
        sent = engine.client_done(self.model.request)
        await self.clock.sleep(sent + self.model.round_trip - self.clock.time())
        end = self.tokenizer.end_id
        job = _Job(request, {*request.stop_ids, end})
        engine.add(job)
        try:
            finish_reason = None
            while finish_reason is None:
                token, finish_reason, due = await job.next()
                if (wait := due - self.clock.time()) > 0:
                    await self.clock.sleep(wait)
                text = "" if token == end else self.tokenizer.decode([token])
                yield Piece((token,), text, finish_reason, len(request.ids), job.cached)
        finally:
            engine.remove(job)

    async def aclose(self) -> None:
        """End every open request with an error."""
        for engine in self._engines:
            engine.close()


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
        self._ready = asyncio.Queue[tuple[int, "FinishReason | None", float] | None]()

    def write(self, due: float) -> bool:
        """Decode a token, which the client gets to at the time `due`; whether it was the last."""
        forced = self.request.extra["forced"]
        token = forced[len(self.out)]
        self.out.append(token)
        finish_reason: FinishReason | None = "stop" if token in self._ends else None
        if finish_reason is None and len(self.out) in (self.request.max_tokens, len(forced)):
            finish_reason = "length"
        self._ready.put_nowait((token, finish_reason, due))
        return finish_reason is not None

    async def next(self) -> tuple[int, FinishReason | None, float]:
        if (ready := await self._ready.get()) is None:
            raise BackendError("simulated: the backend was closed")
        return ready

    def close(self) -> None:
        self._ready.put_nowait(None)


class _Engine:
    """One engine: a batch, a queue, a prefix cache, and a task while there is anything to do."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        self._model, self._clock = model, clock
        self._client_free = 0.0  # when the client is done with all it has to do
        self._cache = PrefixCache()
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._task: asyncio.Task[None] | None = None

    def client_done(self, seconds: float) -> float:
        """Give the client so much more work; when it will be done."""
        self._client_free = max(self._client_free, self._clock.time()) + seconds
        return self._client_free

    def add(self, job: _Job) -> None:
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pasta simulated engine")

    def remove(self, job: _Job) -> None:
        """Let a job go; what it computed stays in the cache."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._running:
            self._finish(job)
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
        model = self._model
        while self._waiting or self._running:
            self._admit()
            decoding = [job for job in self._running if not job.missing]
            tokens = sum(len(job.ids) + len(job.out) for job in decoding)
            parts = self._prefill_parts(model.step_tokens)
            await self._clock.sleep(model.seconds(len(decoding), tokens, sum(count for _, count in parts)))
            for job, count in parts:
                job.missing -= count
                if not job.missing:
                    self._cache.add(job.ids)
                    decoding.append(job)
            due = self.client_done(model.token * len(decoding))
            for job in decoding:
                if job in self._running and job.write(due):
                    self._finish(job)
            if model.embedded and (wait := self._client_free - self._clock.time()) > 0:
                await self._clock.sleep(wait)

    def _prefill_parts(self, budget: int) -> list[tuple[_Job, int]]:
        """The prompts that are computed in this step, as far as they go."""
        parts = list[tuple[_Job, int]]()
        for job in self._running:
            if job.missing and budget:
                parts.append((job, min(job.missing, budget)))
                budget -= parts[-1][1]
        return parts

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._model.max_running:
            job = self._waiting.popleft()
            for other in self._running if self._model.embedded else ():
                if other.request.answer == job.request.answer:
                    self._publish(other)
            job.cached = min(self._cache.match(job.ids), len(job.ids) - 1)
            job.missing = len(job.ids) - job.cached
            self._running.append(job)

    def _finish(self, job: _Job) -> None:
        self._running.remove(job)
        self._publish(job)

    def _publish(self, job: _Job) -> None:
        """Put a job's tokens into the cache; the last one was never fed in, so it has no KV."""
        if not job.missing:
            self._cache.add((*job.ids, *job.out[:-1]))


class _FolderTokenizer:
    """The tokenizer of a model folder, in the form that scripted backends take.

    The text of a token that is less than a character is a replacement character: what is simulated is time.
    """

    def __init__(self, folder: str) -> None:
        from pasta_async.backends.tokenization import TextCodec  # needs the extra `local`

        codec = TextCodec.from_folder(folder)
        if codec.tags is None or not codec.end_ids:
            raise UnsupportedModelError("this tokenizer lacks the tags, or an end-of-text token")
        self._codec = codec
        self.vocab_size: int = codec.vocab_size
        self.end_id: int = codec.end_ids[0]
        self.tags: TagIds | None = codec.tags

    def encode(self, text: str) -> list[int]:
        return self._codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._codec.detokenize(ids)
