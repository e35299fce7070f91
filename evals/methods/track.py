"""Playing one answer by one method: what it decodes, and what is counted of it."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx

from pasta_async import Client, Sampling
from pasta_async.evals.engines import clock_of
from pasta_async.evals.forcing import FORCED_LIMITS, ForcedBackend, encode_segments, force, tags_of
from pasta_async.protocol import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from pasta_async import Backend, Generation
    from pasta_async.clock import Clock
    from pasta_async.lang import Document, Segment
    from pasta_async.protocol import TagIds

    Ids = tuple[int, ...]
    Work = Callable[["Track"], Awaitable[int]]
    """Decodes the answer; returns its critical path in tokens."""

__all__ = ["Case", "Engine", "Method", "Played", "Track", "at_once", "cases_of", "open_engine", "play"]


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
    return [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]


@dataclass(frozen=True, slots=True)
class Played:
    """One timed answer: a row of the results."""

    prompt: int
    """Its place in the list."""
    method: str
    number: int
    """The pass, from 0."""
    seconds: float
    first_token: float
    """Seconds until the first token of whatever is decoded first, an outline for instance."""
    tokens: int
    """Decoded: text, tags, outlines."""
    critical_path: int
    """Tokens that had to be decoded one after another."""
    requests: int
    cached_tokens: int
    """Context tokens that the prefix cache had, over all requests."""
    prefilled_tokens: int
    """Context tokens that were computed."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What methods play on: a backend that can be forced, and its vocabulary."""

    backend: Backend
    url: str
    """Where it is, if that is a server."""
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

    async def segments(self, segments: Sequence[Segment]) -> Ids:
        """Segments, a tag as its one id."""
        return await encode_segments(self.backend, self.tags, segments)

    async def ask(self, prompt: str, *, plain: bool = True) -> Ids:
        """A user's message by the chat template; a plain one asks for an answer without tags."""
        form = {"pasta": False} if plain else {}
        return tuple(await self.backend.encode_chat([{"role": "user", "content": prompt}], form))

    async def ask_library(self, case: Case, *, plain: bool) -> list[int]:
        """The same for an answer by the library, which is then forced."""
        ids = await self.ask(case.prompt, plain=plain)
        self.forced.learn(ids, case.question)
        return [*ids]


@asynccontextmanager
async def open_engine(
    backend: Backend, documents: Mapping[str, Document], *, url: str = ""
) -> AsyncGenerator[Engine]:
    """An engine for these documents on a backend, which stays open; `url` is where it is, if it is a server.

    Raises:
        UnsupportedModelError: The backend's model cannot be forced.
    """
    info, clock, url = await backend.connect(), clock_of(backend), url.rstrip("/")
    forced = ForcedBackend(backend, documents)
    many = httpx.Limits(max_connections=None)
    async with (
        Client(forced, limits=FORCED_LIMITS, clock=clock) as client,
        httpx.AsyncClient(base_url=url, timeout=None, limits=many) as http,
    ):
        await client.connect()
        yield Engine(backend, url, forced, client, tags_of(info), info.end_ids[:1], clock, http)


class Track:
    """One answer under way: decodes, and counts."""

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine = engine
        self.answer: str = uuid4().hex
        self.began: float = engine.clock.time()
        self.first_token: float | None = None
        self.tokens: int = 0
        self.requests: int = 0
        self.cached_tokens: int = 0
        self.prefilled_tokens: int = 0

    async def decode(
        self,
        context: Ids,
        target: Ids,
        *,
        thread: int = 0,
        marks: Mapping[int, Callable[[], object]] | None = None,
    ) -> None:
        """Have the engine write `target` behind `context`.

        Args:
            context: The whole context.
            target: What is written: it ends the request.
            thread: A number of its own for each thread.
            marks: Called when so many tokens are there.

        Cancelling it aborts the request.
        """
        request = DecodeRequest(
            answer=self.answer,
            thread=thread,
            ids=context,
            max_tokens=len(target),
            sampling=Sampling(),
        )
        request = force(self.engine.backend, request, target)
        self.requests += 1
        count, cached = 0, 0
        async with aclosing(self.engine.backend.decode(request)) as pieces:
            async for piece in pieces:
                for _ in piece.ids:
                    count += 1
                    if marks and (mark := marks.get(count)):
                        mark()
                self.token_came()
                cached = cached if piece.cached_tokens is None else piece.cached_tokens
        self.count(tokens=count, cached=cached, prefilled=len(context) - cached)

    def token_came(self) -> None:
        """Note the time of the first token."""
        if self.first_token is None:
            self.first_token = self.engine.clock.time() - self.began

    def count(self, *, tokens: int, cached: int, prefilled: int) -> None:
        """Count a request that is over."""
        self.tokens += tokens
        self.cached_tokens += cached
        self.prefilled_tokens += prefilled

    def take(self, generation: Generation) -> int:
        """Count an answer of the library; its critical path."""
        usage = generation.usage
        self.first_token = generation.threads[0].first_token
        self.requests += usage.requests
        self.count(
            tokens=usage.completion_tokens, cached=usage.cached_tokens, prefilled=usage.prefilled_tokens
        )
        return generation.critical_path


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode an answer."""

    name: str
    source: str
    """The paper or program that it follows."""
    prepare: Callable[[Engine, Case], Awaitable[Work]]
    """Encodes what it needs, then gives what is timed."""
    needs_server: bool = False
    """Whether it talks to an SGLang server by itself."""


async def play(engine: Engine, method: Method, case: Case, number: int = 0) -> Played:
    """Write a case's answer by a method, timed; what it encodes beforehand is not.

    Cancelling it aborts what is under way.
    """
    work = await method.prepare(engine, case.fresh())
    track = Track(engine)
    path = await work(track)
    seconds = engine.clock.time() - track.began
    return Played(
        prompt=case.index,
        method=method.name,
        number=number,
        seconds=seconds,
        first_token=seconds if track.first_token is None else track.first_token,
        tokens=track.tokens,
        critical_path=path,
        requests=track.requests,
        cached_tokens=track.cached_tokens,
        prefilled_tokens=track.prefilled_tokens,
    )


async def at_once(*work: Coroutine[Any, Any, None]) -> None:
    """Do things at the same time. Cancelling it cancels them all."""
    async with asyncio.TaskGroup() as tasks:
        for one in work:
            tasks.create_task(one)
