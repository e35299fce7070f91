"""What parallel decoding would gain on other hardware: an engine to simulate, fitted on a real one.

    python -m pasta_async.evals.simulator --backend http://127.0.0.1:30000 --out engine.json
    python -m pasta_async.evals.load --backend "simulated:engine.json?gpus=8" --documents D.jsonl --rates 50

The first command times decode steps at some concurrencies and context lengths, fits the constants, and checks
them at others that it did not fit. The second plays a Poisson process of answers on so many engines, the
interpreter and the methods unchanged, and says which constants were not measured (`?step=0.01` sets one).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field

from pasta_async import Sampling
from pasta_async.backends import open_backend
from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError
from pasta_async.evals.forcing import force, unwrapped
from pasta_async.evals.records import environment, markdown_table
from pasta_async.load import EngineLoad, StepMeter
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.testing import ScriptedBackend, VirtualClock
from pasta_async.testing.backend import PrefixCache

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from pasta_async import Backend
    from pasta_async.clock import Clock
    from pasta_async.protocol import FinishReason
    from pasta_async.testing import Tokenizer

__all__ = [
    "CONSTANTS",
    "EngineModel",
    "Sample",
    "SimulatedBackend",
    "clock_of",
    "fit",
    "main",
    "take_samples",
]

CONSTANTS = ("step", "sequence", "context", "prefill", "round_trip")

_FITTED = [*product((1, 4, 16), (64, 512))]
_CHECKED = [*product((2, 8), (256,))]
"""Requests at once, and tokens of context."""
_TOKENS = 24
"""Tokens that each timed request decodes."""
_NUMBERS = itertools.count(random.randrange(10**9) * 10**6)


class EngineModel(BaseModel):
    """A step takes step + sequence x requests + context x their tokens + prefill x tokens computed anew.

    Linear, since decoding is bound by memory: the weights are read once for a step, and each request's KV
    besides. Not in it: the end of the KV memory, kernels that change with the batch, prefills in parts or in
    batches of their own, and the client's work. Constants are in seconds.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    step: float = Field(ge=0, description="whatever is decoded: above all, reading the weights")
    sequence: float = Field(default=0.0, ge=0, description="for each request in the batch")
    context: float = Field(default=0.0, ge=0, description="for each token of their contexts")
    prefill: float = Field(default=0.0, ge=0, description="for each prompt token that the cache lacks")
    round_trip: float = Field(default=0.0, ge=0, description="client to engine and back, once a request")
    embedded: bool = Field(default=False, description="a fork finds the KV of threads that still run")
    max_running: int = Field(default=256, ge=1, description="requests of one engine that decode at a time")
    gpus: int = Field(default=1, ge=1, description="engines, each with all the weights")
    tokenizer: str | None = Field(default=None, description="a model folder; without it, words are counted")
    assumed: tuple[str, ...] = Field(default=CONSTANTS, description="constants that no engine was timed for")

    def seconds(self, requests: int, tokens: int, prefilled: int = 0) -> float:
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

    Each step takes what the model says for the requests that are in it; a prompt is computed in one step,
    beside the decoding. Answers go to the engines in turn, all requests of one to the same.

    Args:
        model: How long steps take, and how many engines there are.
        tokenizer: In place of the one that the model names.
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

    async def load(self, answer: str) -> EngineLoad:
        """What the answer's engine counts, and how long its steps take. Never waits."""
        engine = self._engine(answer)
        return replace(engine.load(), engine=str(self._engines.index(engine)))

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
        self.written = asyncio.Queue[tuple[int, "FinishReason | None"] | None]()
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
        self._meter = StepMeter()
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
        meter, running, queued = self._meter, len(self._running), len(self._waiting)
        return EngineLoad(self._model.max_running, running, queued, steps=meter.steps, prefill=meter.prefill)

    def close(self) -> None:
        for job in (*self._waiting, *self._running):
            job.written.put_nowait(None)
            self.remove(job)

    async def _run(self) -> None:
        while self._waiting or self._running:
            decoding = len(self._running)
            tokens = sum(len(job.request.ids) + len(job.out) for job in self._running)
            prefilled = self._admit()
            seconds = self._model.seconds(decoding, tokens, prefilled)
            await self._clock.sleep(seconds)
            self._meter.add(decoding, prefilled, seconds)
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


def clock_of(backend: Backend) -> Clock:
    """The clock on which a backend takes its time, whatever wraps it."""
    inner = unwrapped(backend)
    return inner.clock if isinstance(inner, SimulatedBackend) else REAL_CLOCK


class Sample(NamedTuple):
    """What was measured with so many requests at once on contexts of so many tokens."""

    at_once: int
    context: int
    step: float
    """Seconds between two tokens of a request while all of them decode (median)."""
    first_token: float
    """Seconds until a request's first token, nothing of its context cached (median)."""

    @property
    def tokens(self) -> int:
        """Tokens of all contexts halfway through."""
        return self.at_once * (self.context + _TOKENS // 2)


async def take_samples(
    backend: Backend, settings: Sequence[tuple[int, int]], *, rounds: int = 3
) -> list[Sample]:
    """Decode so many requests at once on contexts of so many tokens, which no cache knows; medians of rounds.

    Args:
        backend: What is timed; it has to take forced requests.
        settings: Requests at once and tokens of context.
        rounds: How often each setting is timed, after one that warms up; all settings take turns.

    Cancelling it aborts the requests under way.
    """
    words = list[int]()
    for start in range(0, 2000, 50):  # texts that fit any context
        words += await backend.encode(" ".join(f"{k} apples and" for k in range(start, start + 50)))
    turns = [[await _time_round(backend, words, *one) for one in settings] for _ in range(rounds + 1)]
    return [
        taken[0]._replace(
            step=median(one.step for one in taken), first_token=median(one.first_token for one in taken)
        )
        for taken in zip(*turns[1:], strict=True)
    ]


async def _time_round(backend: Backend, words: Sequence[int], at_once: int, context: int) -> Sample:
    requests = [_request(backend, words, context) for _ in range(at_once)]
    began = clock_of(backend).time()
    times = await asyncio.gather(*(_token_times(backend, request) for request in requests))
    start, end = max(one[0] for one in times), min(one[-1] for one in times)
    gaps = [b - a for one in times for a, b in pairwise(one) if start <= a and b <= end]
    whole = [(one[-1] - one[0]) / (len(one) - 1) for one in times]  # where they never all decode together
    return Sample(at_once, context, median(gaps or whole), median(one[0] for one in times) - began)


def _request(backend: Backend, words: Sequence[int], context: int) -> DecodeRequest:
    """A request on a context that begins unlike any other."""
    draw = random.Random(number := next(_NUMBERS))
    ids, forced = (tuple(draw.choices(words, k=count)) for count in (context, _TOKENS + 1))
    return force(backend, DecodeRequest(f"sample {number}", 0, ids, _TOKENS, Sampling()), forced)


async def _token_times(backend: Backend, request: DecodeRequest) -> list[float]:
    clock = clock_of(backend)
    async with aclosing(backend.decode(request)) as pieces:
        return [now async for piece in pieces for now in [clock.time()] * len(piece.ids)]


def fit(samples: Sequence[Sample]) -> EngineModel:
    """The constants that are nearest to some samples, by least squares of the relative error, none negative.

    Raises:
        InvalidRequestError: The samples do not tell the constants apart: they need two batches, two contexts.
    """
    if len({s.at_once for s in samples}) < 2 or len({s.context for s in samples}) < 2:
        raise InvalidRequestError("a fit needs two numbers of requests at once, and two lengths of context")
    step, sequence, context = _fit([s.step for s in samples], [(1, s.at_once, s.tokens) for s in samples])
    alone = [s for s in samples if s.at_once == min(s.at_once for s in samples)]
    waits = [max(s.first_token - step, 1e-9) for s in alone]
    trip, prefill = _fit(waits, [(1, s.at_once * s.context) for s in alone])
    return EngineModel(
        step=step, sequence=sequence, context=context, prefill=prefill, round_trip=trip, assumed=()
    )


def _fit(values: Sequence[float], columns: Sequence[tuple[float, ...]]) -> list[float]:
    """Coefficients, none negative, by which the columns sum to the values with the least relative error."""
    import numpy as np

    nnls: Any = importlib.import_module("scipy.optimize").nnls
    table = np.array(columns) / np.array(values)[:, None]
    scale = table.max(axis=0)
    found: Any = nnls(table / scale, np.ones(len(values)))[0]
    return (found / scale).tolist()


def _check_rows(model: EngineModel, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Steps as they were measured and as the model has them: a row for each sample."""
    return [
        {
            "at once": sample.at_once,
            "context": sample.context,
            "step ms, measured": 1000 * sample.step,
            "model": 1000 * (modelled := model.seconds(sample.at_once, sample.tokens)),
            "error": f"{100 * (modelled / sample.step - 1):+.0f}%",
        }
        for sample in samples
    ]


class SimulatorSettings(CommandSettings):
    """What is timed, and how."""

    backend: str = Field(description="local:FOLDER, or the URL of an SGLang server")
    out: Path = Field(description="file for the constants")
    rounds: int = Field(default=3, ge=1, description="how often each setting is timed")


async def _measure(settings: SimulatorSettings) -> str:
    async with aclosing(open_backend(settings.backend)) as backend:
        await backend.connect()
        fitted = await take_samples(backend, _FITTED, rounds=settings.rounds)
        checked = await take_samples(backend, _CHECKED, rounds=settings.rounds)
    model = fit(fitted).model_copy(update={"embedded": not settings.backend.startswith("http")})
    settings.out.write_text(model.model_dump_json(indent=1) + "\n", encoding="utf-8")
    parts = ["steps that were fitted", markdown_table(_check_rows(model, fitted))]
    parts += ["steps that were not", markdown_table(_check_rows(model, checked))]
    return "\n\n".join([*parts, f"{settings.out}: {model}\n{environment()}"])


main: Command = command(SimulatorSettings, _measure, "simulator", __doc__)

if __name__ == "__main__":
    main()
