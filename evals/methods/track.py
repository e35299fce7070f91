"""What the methods share: the parts of a written answer, an engine to decode them on, and what it took."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import httpx

from pasta_async import Backend, Client, Generation, Sampling
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.clock import REAL_CLOCK, Clock
from pasta_async.evals.answers import Answer
from pasta_async.evals.documents import WARM_UP_SEED
from pasta_async.evals.engines import authorization
from pasta_async.evals.forcing import FORCED_LIMITS, ForcedBackend, force, tags_of, unwrapped
from pasta_async.evals.simulator import SimulatedBackend
from pasta_async.lang import Document, Node, Promise, Sync
from pasta_async.protocol import DecodeRequest
from pasta_async.tag_tokens import TagIds
from pasta_async.training.synthetic import sample

Ids = tuple[int, ...]
Work = Callable[["Track"], Awaitable[int]]
"""Decodes the answer; returns its critical path in tokens."""

_NUMBERS = itertools.count(random.randrange(900**2))


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and the answer that every method is to write."""

    index: int
    question: str
    document: Document
    prompt: str = ""
    """The question with a number of its own before it, so that no answer finds another's KV."""

    def fresh(self) -> Case:
        """The same to be asked as if for the first time."""
        number = next(_NUMBERS)
        return replace(self, prompt=f"[{number % 900 + 100} {number // 900 % 900 + 100}] {self.question}")


def cases_of(documents: Mapping[str, Document]) -> list[Case]:
    """A case for each document."""
    return [Case(index, *asked) for index, asked in enumerate(documents.items())]


def _warm_up_case() -> Case:
    """An answer with several threads and a join that is not among those that count."""
    example = sample("totals", WARM_UP_SEED, "names")
    return Case(-1, example.prompt, example.document)


async def warm_up(engine: Engine, methods: Iterable[Method]) -> None:
    """Have each method write an answer that does not count. Cancelling it aborts what is under way."""
    for method in methods:
        await play(engine, method, _warm_up_case())


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the visible text that is decoded on its own."""

    topic: str
    """Empty where nothing was promised."""
    text: str


def rounds(document: Document) -> list[list[Part]]:
    """The visible text as parts that do not depend on each other, in rounds that have to come one by one.

    A part is a promised chunk with the text before it; what follows the last one of a round belongs to it,
    and a round without promises is one part.
    """
    return [parts for nodes in stretches(document.nodes) if (parts := _parts(nodes))]


def stretches(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes up to each sync, it included, and what is left."""
    result = [list[Node]()]
    for node in nodes:
        result[-1].append(node)
        if isinstance(node, Sync):
            result.append([])
    return result


def _parts(nodes: Sequence[Node]) -> list[Part]:
    parts, text = list[Part](), ""
    for node in nodes:
        text += node.text
        if isinstance(node, Promise):
            parts.append(Part(node.topic, text))
            text = ""
    if parts:
        parts[-1] = Part(parts[-1].topic, parts[-1].text + text)
    elif text:
        parts.append(Part("", text))
    return parts


def outline(parts: Sequence[Part]) -> str:
    """The numbered list that Skeleton-of-Thought decodes first: a few words for each part."""
    return "\n".join(f"{number}. {part.topic or 'Conclusion'}" for number, part in enumerate(parts, 1))


@dataclass(frozen=True, slots=True)
class Engine:
    """What methods decode on: a backend that can be forced, and its vocabulary."""

    backend: Backend
    forced: ForcedBackend
    """The same backend, with the documents of all cases."""
    client: Client
    """The library, on `forced`."""
    tags: TagIds
    end: Ids
    """End-of-text."""
    clock: Clock
    http: httpx.AsyncClient
    """For methods that talk to the server by themselves."""

    async def encode(self, text: str) -> Ids:
        """A text as data."""
        return tuple(await self.backend.encode(text))

    async def ask(self, prompt: str, *, plain: bool = True) -> Ids:
        """A user's message by the chat template; a plain one asks for an answer without tags."""
        form = {"pasta": False} if plain else {}
        return tuple(await self.backend.encode_chat([{"role": "user", "content": prompt}], form))


@asynccontextmanager
async def open_engine(backend: Backend, documents: Mapping[str, Document]) -> AsyncGenerator[Engine]:
    """An engine for these documents, and that of `warm_up`, on a backend, which stays open.

    Raises:
        UnsupportedModelError: The backend's model cannot be forced.
    """
    info, inner = await backend.connect(), unwrapped(backend)
    clock = inner.clock if isinstance(inner, SimulatedBackend) else REAL_CLOCK
    url = backend.url if isinstance(backend, SGLangBackend) else ""
    warm = _warm_up_case()
    forced = ForcedBackend(backend, {warm.question: warm.document, **documents})
    many = httpx.Limits(max_connections=None)
    async with (
        Client(forced, limits=FORCED_LIMITS, clock=clock) as client,
        httpx.AsyncClient(base_url=url, timeout=None, limits=many, headers=authorization()) as http,
    ):
        await client.connect()
        yield Engine(backend, forced, client, tags_of(info), info.end_ids[:1], clock, http)


class Track:
    """One answer under way: decodes, and counts.

    Attributes:
        counts: Of tokens and requests, by their names in an `Answer`.
        first_token: Seconds until the first token; None before.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine = engine
        self.began: float = engine.clock.time()
        self.first_token: float | None = None
        self.counts: Counter[str] = Counter()
        self._answer = uuid4().hex

    async def decode(
        self, context: Ids, target: Ids, *, thread: int = 0, told: Callable[[int], object] | None = None
    ) -> None:
        """Have the engine write `target` behind the whole `context`. Cancelling it aborts the request.

        Each thread has a number of its own; `told` is called with how many tokens are there, at each.
        """
        backend = self.engine.backend
        request = DecodeRequest(self._answer, thread, context, len(target), Sampling())
        written = cached = 0
        async with aclosing(backend.decode(force(backend, request, target))) as pieces:
            async for piece in pieces:
                self.note_token()
                for _ in piece.ids:
                    written += 1
                    if told:
                        told(written)
                cached = cached if piece.cached_tokens is None else piece.cached_tokens
        self.count(written, cached, len(context) - cached)

    def note_token(self) -> None:
        """Note the time of the first token."""
        if self.first_token is None:
            self.first_token = self.engine.clock.time() - self.began

    def count(self, tokens: int, cached: int, prefilled: int, requests: int = 1) -> None:
        """Count a request that is over: tokens decoded, context tokens that the cache had, and had not."""
        self.counts.update(tokens=tokens, cached_tokens=cached, prefilled_tokens=prefilled, requests=requests)

    def take(self, generation: Generation) -> int:
        """Count an answer of the library; its critical path."""
        usage, self.first_token = generation.usage, generation.threads[0].first_token
        self.count(usage.completion_tokens, usage.cached_tokens, usage.prefilled_tokens, usage.requests)
        return generation.critical_path


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode an answer."""

    name: str
    source: str
    """The paper or program that it follows."""
    prepare: Callable[[Engine, Case], Awaitable[Work]]
    """Encodes what it needs, then gives what is timed."""
    optional: bool = False
    """Whether it is measured only if it is named."""
    needs_server: bool = False
    """Whether it talks to an SGLang server by itself."""


async def play(engine: Engine, method: Method, case: Case, number: int = 0) -> Answer:
    """Write a case's answer by a method; see `time_work`. What it encodes beforehand is not timed."""
    return await time_work(engine, method, case, await method.prepare(engine, case.fresh()), number)


async def time_work(engine: Engine, method: Method, case: Case, work: Work, number: int = 0) -> Answer:
    """Do what a method has prepared, timed. Cancelling it aborts what is under way."""
    track = Track(engine)
    path = await work(track)
    seconds = engine.clock.time() - track.began
    answer = Answer(
        prompt=case.index,
        method=method.name,
        number=number,
        seconds=seconds,
        first_token=seconds if track.first_token is None else track.first_token,
        critical_path=path,
        family="parallel" if case.document.promises else "sequential",
    )
    return replace(answer, **track.counts)
