"""What parallel decoding would gain on other hardware: simulated engines.

    python -m pasta_async.evals.load --backend "simulated:step=0.01&gpus=8" --documents D.jsonl --rates 50

`load` and `methods` run on them as on real ones, on a virtual clock, interpreter and methods unchanged.
Nothing checks the constants: measure them on the engine that you ask about.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

from pydantic import Field

from pasta_async.clock import Clock
from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError
from pasta_async.load import EngineLoad
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.results import FinishReason
from pasta_async.testing import ScriptedBackend, Tokenizer, VirtualClock
from pasta_async.testing.backend import PrefixCache
from pasta_async.training.data.corpus import StrictModel


class EngineModel(StrictModel):
    """A step takes step + sequence x requests + context x their tokens + prefill x tokens computed anew.

    Linear, since decoding is bound by memory: the weights are read once for a step, and each request's KV
    besides. Not in it: the end of the KV memory, kernels that change with the batch, prefills in parts or in
    batches of their own, and the client's work. Constants are in seconds.
    """

    step: float = Field(ge=0, description="whatever is decoded: above all, reading the weights")
    sequence: float = Field(default=0.0, ge=0, description="for each request in the batch")
    context: float = Field(default=0.0, ge=0, description="for each token of their contexts")
    prefill: float = Field(default=0.0, ge=0, description="for each prompt token that the cache lacks")
    round_trip: float = Field(default=0.0, ge=0, description="client to engine and back, once a request")
    embedded: bool = Field(default=False, description="a fork finds the KV of threads that still run")
    max_running: int = Field(default=256, ge=1, description="requests of one engine that decode at a time")
    gpus: int = Field(default=1, ge=1, description="engines, each with all the weights")
    tokenizer: str | None = Field(default=None, description="a model folder; without it, words are counted")

    @classmethod
    def of(cls, constants: str) -> EngineModel:
        """Read constants as they stand behind `simulated:`, such as `step=0.01&gpus=8`.

        Raises:
            InvalidRequestError: One is unknown, out of range, or missing.
        """
        try:
            return cls.model_validate(dict(parse_qsl(constants, strict_parsing=True)))
        except ValueError as error:
            raise InvalidRequestError(f"{constants!r} are no constants of engines: {error}") from error


class SimulatedBackend(ScriptedBackend):
    """Engines with continuous batching and a prefix cache each; every request has to be forced.

    Each step takes what the model says for the requests that are in it; a prompt is computed in one step,
    beside the decoding. Answers go to the engines in turn, all requests of one to the same. A given tokenizer
    takes the place of the one that the model names.
    """

    def __init__(self, model: EngineModel, tokenizer: Tokenizer | None = None) -> None:
        if model.tokenizer and tokenizer is None:
            tokenizer = _read_tokenizer(model.tokenizer)
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
        engine = self._engine(request.answer)
        await self.clock.sleep(self.model.round_trip)
        end = self.tokenizer.end_id
        job = _Job(request, {*request.stop_ids, end})
        engine.add(job)
        try:
            finish_reason = None
            while finish_reason is None:
                if (written := await job.written.get()) is None:
                    raise BackendError("simulated: the backend was closed")
                token, finish_reason = written
                text = "" if token == end else self.tokenizer.decode([token])
                yield Piece((token,), text, finish_reason, len(request.ids), job.cached)
        finally:
            engine.remove(job)

    async def load(self) -> EngineLoad:
        """What the first engine counts. Never waits."""
        return self._engines[0].load()

    def _engine(self, answer: str) -> _Engine:
        turn = self._engines[len(self._engine_of) % len(self._engines)]
        return self._engine_of.setdefault(answer, turn)

    async def aclose(self) -> None:
        """End every open request with an error. Never waits, so there is nothing to cancel."""
        for engine in self._engines:
            engine.close()


class _Job:
    """A request in an engine."""

    def __init__(self, request: DecodeRequest, ends: set[int]) -> None:
        self.request = request
        self.cached = 0
        self.out: list[int] = []
        self.written = asyncio.Queue[tuple[int, FinishReason | None] | None]()
        """Tokens that nobody has read yet; None when the backend was closed."""
        self._ends = ends

    def write(self) -> bool:
        """Decode a token; whether it was the last."""
        forced = self.request.extra["forced"]
        self.out.append(token := forced[len(self.out)])
        last = len(self.out) in (self.request.max_tokens, len(forced))
        finish_reason = "stop" if token in self._ends else "length" if last else None
        self.written.put_nowait((token, finish_reason))
        return finish_reason is not None


class _Engine:
    """One engine: a batch, a queue, a prefix cache, and a task while there is anything to do."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        self._model, self._clock = model, clock
        self._cache = PrefixCache()
        self._waiting: list[_Job] = []
        self._running: list[_Job] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, job: _Job) -> None:
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pasta simulated engine")

    def remove(self, job: _Job) -> None:
        """Let a job go; what it computed stays in the cache."""
        for jobs in (self._waiting, self._running):
            if job in jobs:
                jobs.remove(job)
                self._publish(job)
        if not self._waiting and not self._running and self._task:
            self._task.cancel()

    def load(self) -> EngineLoad:
        return EngineLoad(self._model.max_running, len(self._running), len(self._waiting))

    def close(self) -> None:
        for job in (*self._waiting, *self._running):
            job.written.put_nowait(None)
            self.remove(job)

    async def _run(self) -> None:
        model = self._model
        while self._waiting or self._running:
            decoding = len(self._running)
            tokens = sum(len(job.request.ids) + len(job.out) for job in self._running)
            prefilled = self._admit()
            seconds = (
                model.step + model.sequence * decoding + model.context * tokens + model.prefill * prefilled
            )
            await self._clock.sleep(seconds)
            for job in [*self._running]:
                if job.write():
                    self._running.remove(job)
                    self._publish(job)
                elif len(job.out) == 1:
                    self._publish(job)

    def _admit(self) -> int:
        """Take requests into the batch; how many tokens of theirs have to be computed."""
        prefilled = 0
        while self._waiting and len(self._running) < self._model.max_running:
            job = self._waiting.pop(0)
            for other in self._running if self._model.embedded else ():
                if other.request.answer == job.request.answer:
                    self._publish(other)
            job.cached = min(self._cache.match(job.request.ids), len(job.request.ids) - 1)
            prefilled += len(job.request.ids) - job.cached
            self._running.append(job)
        return prefilled

    def _publish(self, job: _Job) -> None:
        """Put a job's tokens into the cache; the last one was never fed in, so it has no KV."""
        if job.out:
            self._cache.add((*job.request.ids, *job.out[:-1]))


def _read_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of a model folder. A token of less than a character has no text of its own there."""
    from pasta_async.backends.tokenization import TextCodec  # needs the extra `local`

    codec = TextCodec.from_folder(folder)
    if codec.tags is None or not codec.end_ids:
        raise UnsupportedModelError("this tokenizer lacks the tags, or an end-of-text token")
    made: Any = SimpleNamespace(vocab_size=codec.vocab_size, end_id=codec.end_ids[0], tags=codec.tags)
    made.encode, made.decode = codec.encode, codec.detokenize
    return made
