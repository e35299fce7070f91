"""A second real server, which has no tokenizer: alone, behind SGLang's own router, and killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from pasta_async import Client, Generation, PastaError, Sampling
from tests.helpers.real_server import SGLangServer, require_sglang, running_router, running_server
from tests.helpers.server_contract import until
from tests.pasta_tiny import PASTA_TINY, examples

pytestmark = pytest.mark.timeout(600)  # the first test waits for a server to start

CAMERAS = (
    "Tell our readers about the cameras. Brevas is purple, comes from Cure, weighs 5 kilos and is good for "
    "garden work. Trihano is green, comes from Pia, weighs 29 kilos and is good for cold nights."
)
# Words that the model was trained on. Before one that it does not know ("chairs") several are equally likely,
# and the other requests of a batch decide which it writes.
KNOWN = ("robots", "bikes", "boats", "violins", "clocks")
PROMPTS = [CAMERAS.replace("cameras", things) for things in KNOWN]


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SGLangServer, int]]:
    """A second server with the same model, and its process group."""
    require_sglang("sglang_router")
    log = tmp_path_factory.mktemp("doomed") / "log"
    with running_server(PASTA_TINY, log, "--skip-tokenizer-init") as (url, group):
        yield SGLangServer(url, PASTA_TINY), group


@pytest.fixture(scope="module")
def router(
    server: SGLangServer, doomed: tuple[SGLangServer, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of the router in front of both."""
    with running_router([server.url, doomed[0].url], tmp_path_factory.mktemp("router") / "log") as url:
        yield url


@pytest.fixture
async def client(router: str) -> AsyncIterator[Client]:
    """A client of the router."""
    async with Client(router) as client:
        yield client


async def test_a_server_without_a_tokenizer_answers_alike(
    server: SGLangServer, doomed: tuple[SGLangServer, int]
) -> None:
    prompts = [example.prompt for example in examples()[::10]]
    answers: list[list[Generation]] = []
    for url in (server.url, doomed[0].url):
        async with Client(url) as client:
            answer = partial(client.generate, parallel="always", stop=["zebra"])
            answers.append(await asyncio.gather(*map(answer, prompts)))
    with_tokenizer, without = (
        [answer.document.format() for answer in generations] for generations in answers
    )
    assert without == with_tokenizer
    assert any(len(answer.threads) > 1 for answer in answers[0])


async def test_an_answer_stays_on_one_worker(
    server: SGLangServer, doomed: tuple[SGLangServer, int], client: Client
) -> None:
    workers = [server, doomed[0]]
    async with Client(server.url) as first, Client(doomed[0].url) as second:
        for prompt in PROMPTS[:2]:
            for worker in workers:
                worker.flush()
            answer = await client.generate(prompt, parallel="always")
            probes = [
                await worker_client.generate(prompt, sampling=Sampling(max_tokens=1))
                for worker_client in (first, second)
            ]
            cached = sorted(probe.usage.cached_tokens for probe in probes)
            assert cached[0] <= 1 < cached[1]  # one worker knows the prompt, the other never saw it
            assert answer.text == (await first.generate(prompt)).text
    async with client.stream(PROMPTS[0]) as stream:
        await anext(stream)
    for worker in workers:
        await until(worker, 0)


async def test_a_worker_that_is_killed_harms_at_most_its_own_answers(
    server: SGLangServer, doomed: tuple[SGLangServer, int], client: Client
) -> None:
    worker, group = doomed
    async with Client(server.url) as alone:
        expected = [(await alone.generate(prompt)).text for prompt in PROMPTS]
    shown = [""] * len(PROMPTS)
    news = asyncio.Condition()

    async def read(number: int) -> PastaError | None:
        async with client.stream(PROMPTS[number], parallel="always") as stream:
            try:
                async for delta in stream.text_deltas():
                    shown[number] += delta
                    async with news:
                        news.notify_all()
            except PastaError as error:
                return error
        return None

    async def happens(condition: Callable[[], bool]) -> None:
        async with news:
            await news.wait_for(condition)

    readers = [asyncio.create_task(read(number)) for number in range(len(PROMPTS))]
    await happens(lambda: any(shown) and worker.running() > 0)
    os.killpg(group, signal.SIGKILL)
    errors = await asyncio.gather(*readers)
    assert None in errors  # the other worker's; those of the killed one may have gone on there
    for error, text, whole in zip(errors, shown, expected, strict=True):
        if error is None:
            assert text == whole
        else:
            assert error.partial is not None and error.partial.text == text
            assert whole.startswith(
                text.rstrip()
            )  # main's blank lines may stand behind a chunk that broke off
    answers = await asyncio.gather(*(client.generate(prompt) for prompt in PROMPTS))
    assert [answer.text for answer in answers] == expected
    await until(server, 0)
