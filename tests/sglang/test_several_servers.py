"""Answers spread over two real SGLang servers, one of which is killed in the middle and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from real_server import RealServer, require_sglang, running_router, running_server, until

from pasta_async import (
    BackendLostError,
    Client,
    DecodeRequest,
    Piece,
    Sampling,
    ThreadFailedError,
)
from pasta_async.backends import open_backend
from pasta_async.backends.routed import RoutedBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.training.synthetic import sample

pytestmark = pytest.mark.timeout(600)  # the first test waits for a server to start

PROMPTS = [sample("describe", k).prompt for k in range(6)]
"""Different from the start, so that no affinity draws them to one server."""


class Second:
    """The server that is killed."""

    def __init__(self, url: str, group: int) -> None:
        self.url = url
        self._group = group

    def kill(self) -> None:
        os.killpg(self._group, signal.SIGKILL)


class Spy(SGLangBackend):
    """Knows which answers have come how far, and sends nothing before it is let go.

    Attributes:
        decoded: Pieces of each answer, 0 for one whose first request has just come.
        go: Set it to have the requests sent.
    """

    def __init__(self, url: str, news: asyncio.Condition) -> None:
        super().__init__(url)
        self.decoded: dict[str, int] = {}
        self.go = asyncio.Event()
        self._news = news

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        await self._tell(request.answer, 0)
        await self.go.wait()
        async with aclosing(super().decode(request)) as pieces:
            async for piece in pieces:
                await self._tell(request.answer, 1)
                yield piece

    async def _tell(self, answer: str, more: int) -> None:
        async with self._news:
            self.decoded[answer] = self.decoded.get(answer, 0) + more
            self._news.notify_all()


class Reader:
    """Somebody who watches an answer.

    Attributes:
        text: What was shown.
        error: How it broke off.
    """

    def __init__(self) -> None:
        self.text: str = ""
        self.error: ThreadFailedError | None = None

    async def read(self, client: Client, prompt: str) -> None:
        async with client.stream(prompt, parallel="always") as stream:
            try:
                async for delta in stream.text_deltas():
                    self.text += delta
            except ThreadFailedError as error:
                self.error = error


@pytest.fixture(scope="module")
def second(shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    """A second server beside the one that all tests share, with the same model."""
    with running_server(shipped, tmp_path_factory.mktemp("second") / "log") as (url, group):
        yield Second(url, group)


async def test_two_servers_answer_as_one_does(server: RealServer, second: Second) -> None:
    backend = open_backend([server.url, second.url])
    async with Client(server.url) as alone, Client(backend) as spread:
        expected = [(await alone.generate(prompt)).text for prompt in PROMPTS]
        made = await asyncio.gather(*(spread.generate(prompt, parallel="always") for prompt in PROMPTS))
    assert [answer.text for answer in made] == expected
    assert any(len(answer.threads) > 1 for answer in made)
    assert isinstance(backend, RoutedBackend)
    assert all(state.live and not state.open_requests for state in backend.members)
    await backend.aclose()


async def test_behind_a_router_an_answer_stays_on_one_worker(
    server: RealServer, second: Second, tmp_path: Path
) -> None:
    require_sglang("sglang_router")
    workers = [server, RealServer(second.url, server.model)]
    with running_router([worker.url for worker in workers], tmp_path / "log") as url:
        async with Client(url) as client, Client(server.url) as first, Client(second.url) as other:
            for prompt in PROMPTS[:2]:
                for worker in workers:
                    worker.flush()
                answer = await client.generate(prompt)
                probes = [
                    await each.generate(prompt, sampling=Sampling(max_tokens=1)) for each in (first, other)
                ]
                cached = sorted(probe.usage.cached_tokens for probe in probes)
                assert cached[0] <= 1 < cached[1]  # one worker knows the prompt, the other never saw it
                assert answer.text == (await first.generate(prompt)).text
            async with client.stream(PROMPTS[0]) as stream:
                await anext(stream)
    for worker in workers:
        await until(worker, 0)


async def test_one_is_killed_in_the_middle_and_comes_back(server: RealServer, second: Second) -> None:
    news = asyncio.Condition()
    healthy, doomed = Spy(server.url, news), Spy(second.url, news)
    routed = RoutedBackend({server.url: healthy, second.url: doomed})
    readers = [Reader(), Reader()]
    async with aclosing(routed), Client(server.url) as alone, Client(routed) as client:
        plain = [(await alone.generate(prompt, baseline=True)).text for prompt in PROMPTS[:2]]
        expected = [(await alone.generate(prompt)).text for prompt in PROMPTS[2:]]
        await client.connect()

        async def happens(condition: Callable[[], bool]) -> None:
            async with news:
                await news.wait_for(condition)

        # Idle servers take one answer each: first two that nobody watches, then two that are watched.
        unwatched = [asyncio.create_task(client.generate(p, baseline=True)) for p in PROMPTS[:2]]
        await happens(lambda: len(healthy.decoded) == len(doomed.decoded) == 1)
        watched = [
            asyncio.create_task(reader.read(client, p))
            for reader, p in zip(readers, PROMPTS[2:4], strict=True)
        ]
        await happens(lambda: len(healthy.decoded) == len(doomed.decoded) == 2)
        doomed.go.set()
        await happens(lambda: any(reader.text for reader in readers) and all(doomed.decoded.values()))
        second.kill()
        healthy.go.set()

        answers = await asyncio.gather(*unwatched)
        assert [answer.text for answer in answers] == plain
        [note] = [note for answer in answers for note in answer.notes]
        assert note.startswith(f"started again elsewhere: {second.url} was lost")

        await asyncio.gather(*watched)
        [broken] = [reader for reader in readers if reader.error]
        [whole] = [reader for reader in readers if not reader.error]
        assert whole.text == expected[readers.index(whole)]
        assert broken.text
        # Behind the chunk that broke off there may be main's blank lines.
        assert expected[readers.index(broken)].startswith(broken.text.rstrip())
        assert broken.error is not None
        assert isinstance(broken.error.__cause__, BackendLostError)
        assert f"{second.url} was lost" in str(broken.error)
        assert broken.error.partial is not None
        assert broken.error.partial.text == broken.text

        assert [state.live for state in routed.members] == [True, False]
        assert (await client.generate(PROMPTS[2])).text == expected[0]
        async with forwarded(second.url, server.url):  # a server is there again
            while not routed.members[1].live:
                await client.generate(PROMPTS[0], sampling=Sampling(max_tokens=1))
            doomed.decoded.clear()
            made = await asyncio.gather(
                *(client.generate(prompt, parallel="always") for prompt in PROMPTS[4:])
            )
            assert [answer.text for answer in made] == expected[2:]
            assert doomed.decoded
            await routed.aclose()  # before what it is forwarded to
    await until(server, 0)


@asynccontextmanager
async def forwarded(url: str, to: str) -> AsyncGenerator[None]:
    """Listen where one server was, and hand what comes on to another."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", httpx.URL(to).port)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    listener = await asyncio.start_server(connect, "127.0.0.1", httpx.URL(url).port)
    async with listener:
        yield
