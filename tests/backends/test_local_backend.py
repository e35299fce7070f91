"""The embedded backend as the interpreter meets it: pieces, limits, cancellation, and what it refuses."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.batch import Floats
from pasta_async.backends.local.checkpoint import Checkpoint, open_folder
from pasta_async.backends.local.model import CausalLM
from pasta_async.backends.local.scheduler import Scheduler
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.options import Sampling
from pasta_async.protocol import Backend, DecodeRequest
from tests.helpers import local_models
from tests.helpers.cache_checks import check_scheduler
from tests.helpers.server_contract import ids_of, read

GREEDY, WARM = Sampling(), Sampling(temperature=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, tokenizer = tmp_path_factory.mktemp("backend"), local_models.byte_level()
    model = local_models.model()
    with torch.no_grad():  # it never ends a text by itself
        model.lm_head.weight[tokenizer.eos_token_id] = 0
    return local_models.save(path, model, tokenizer)


@pytest.fixture
async def backend(folder: Path) -> AsyncIterator[LocalBackend]:
    engine = LocalBackend(folder, device="cpu", slots=512)
    yield engine
    await engine.aclose()


def request(ids: list[int] | range, max_tokens: int = 20, **fields: Any) -> DecodeRequest:
    values: dict[str, Any] = {"answer": "a", "thread": 0, "sampling": GREEDY, **fields}
    return DecodeRequest(ids=tuple(ids), max_tokens=max_tokens, **values)


def scheduler(backend: LocalBackend) -> Scheduler:
    assert backend.engine is not None
    return backend.engine.scheduler


def check_idle(backend: LocalBackend) -> None:
    assert scheduler(backend).running == scheduler(backend).waiting == []
    check_scheduler(scheduler(backend))


async def decoded(backend: LocalBackend, asked: DecodeRequest) -> list[int]:
    return ids_of(await read(backend, asked))


async def test_it_is_a_backend_and_says_what_it_knows(backend: LocalBackend, folder: Path) -> None:
    assert isinstance(backend, Backend)
    assert await backend.load() is None
    model = await backend.connect()
    assert model is await backend.connect()
    assert (model.name, model.context_length, model.vocab_size) == (folder.name, 512, 512)
    assert model.honours_seeds
    assert model.tags is not None
    assert [model.tokenizer.decode([tag]) for tag in model.tags] == list(TAG_TOKENS)
    assert model.tokenizer.decode(model.end_ids) == "<|im_end|>"


async def test_a_piece_for_each_step_with_usage(backend: LocalBackend) -> None:
    received = await read(backend, request(range(30)))
    assert [len(piece.ids) for piece in received] == [1] * 20
    assert [piece.finish_reason for piece in received] == [None] * 19 + ["length"]
    assert [piece.cached_tokens for piece in received] == [0, *[None] * 18, 0]


async def test_a_logits_processor_chooses_for_its_own_request_only(backend: LocalBackend) -> None:
    seen: list[list[int]] = []

    def descending(generated: Sequence[int], logits: Floats) -> Floats:
        seen.append(list(generated))
        assert (logits.shape, logits.dtype) == ((512,), np.float32)
        return np.where(np.arange(512) == 40 - len(generated), 1.0, 0.0)

    alone = await decoded(backend, request(range(30), 4))
    free, led = await asyncio.gather(
        decoded(backend, request(range(30), 4)),
        decoded(backend, request(range(30), 4, extra={"logits_processor": descending})),
    )
    assert free == alone
    assert led == [40, 39, 38, 37]
    assert seen == [[], [40], [40, 39], [40, 39, 38]]


async def test_a_seed_gives_the_same_tokens_however_the_answer_is_cut(backend: LocalBackend) -> None:
    requests = [request(range(30), 20, sampling=WARM, seed=seed) for seed in (5, 6)]
    whole, other = await asyncio.gather(*(decoded(backend, seeded) for seeded in requests))
    assert whole != other
    first = await decoded(backend, request(range(30), 8, sampling=WARM, seed=5))
    rest = await decoded(backend, request([*range(30), *first], 12, sampling=WARM, seed=5))
    assert first + rest == whole
    free = [await decoded(backend, request(range(30), 20, sampling=WARM)) for _ in range(2)]
    assert free[0] != free[1]


async def test_stretches_of_an_answer_do_not_repeat_their_draws(backend: LocalBackend) -> None:
    """Every step has one distribution, so that equal draws would be equal tokens."""

    def flat(generated: Sequence[int], logits: Floats) -> Floats:
        return np.zeros_like(logits)

    drawn: list[list[int]] = []
    for length in (30, 50, 70):  # as main goes on behind two syncs
        stretch = request(range(length), 12, sampling=WARM, seed=5, extra={"logits_processor": flat})
        drawn.append(await decoded(backend, stretch))
    alike = sum(a == b for pair in itertools.combinations(drawn, 2) for a, b in zip(*pair, strict=False))
    assert alike <= 3  # of 36


@pytest.mark.parametrize(
    "fields",
    [
        *({"ids": ids} for ids in [(1, 512), (-1, 5), (), ("x",)]),
        *({"max_tokens": count} for count in (0, 511)),
    ],
    ids=str,
)
async def test_what_cannot_work_is_refused_at_once(backend: LocalBackend, fields: dict[str, Any]) -> None:
    values: dict[str, Any] = {"answer": "a", "thread": 0, "sampling": GREEDY, "ids": (1, 2), "max_tokens": 5}
    with pytest.raises(InvalidRequestError):
        await read(backend, DecodeRequest(**{**values, **fields}))


# Readers that leave, and readers that are slow ------------------------------------------------------------


async def test_closing_early_leaves_nothing_and_keeps_the_cache(backend: LocalBackend) -> None:
    expected = await decoded(backend, request(range(50), 40))
    other = asyncio.create_task(decoded(backend, request(range(50), 40, answer="kept")))
    stream = backend.decode(request(range(100, 140), 300))
    async for _ in stream:
        break
    await stream.aclose()
    assert len(scheduler(backend).running) <= 1  # the other one
    assert await other == expected
    check_idle(backend)
    received = await read(backend, request(range(100, 140), 2))
    assert received[0].cached_tokens == 39


async def test_cancelling_a_reader_leaves_nothing(backend: LocalBackend) -> None:
    await backend.connect()
    started = asyncio.Event()

    async def reading() -> None:
        async for _ in backend.decode(request(range(40), 400)):
            started.set()

    tasks = [asyncio.create_task(reading()) for _ in range(3)]
    await started.wait()
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    check_idle(backend)


async def test_a_request_goes_on_while_its_reader_is_slow(backend: LocalBackend) -> None:
    slow = backend.decode(request(range(40), 300, answer="slow"))
    first = await anext(slow)
    fast = await decoded(backend, request(range(50), 400, answer="fast"))
    assert len(fast) == 400
    check_idle(backend)  # both are decoded, though one is not read
    rest = [piece async for piece in slow]
    assert len(ids_of([first, *rest])) == 300


async def test_more_requests_than_slots_all_end_also_when_they_wait_for_each_other(folder: Path) -> None:
    async with aclosing(LocalBackend(folder, device="cpu", slots=128)) as backend:
        requests = [request(range(i, 30 + i), 60, answer=str(i)) for i in range(8)]
        received = await asyncio.gather(*(decoded(backend, waiting) for waiting in requests))
        assert [len(ids) for ids in received] == [60] * 8
        main = backend.decode(request(range(40), 80, answer="main"))
        await anext(main)  # its reader stops until another request, which needs the same slots, has ended
        assert len(await decoded(backend, request(range(100, 140), 80, answer="other"))) == 80
        assert len(ids_of([piece async for piece in main])) == 79


# Closing, and event loops ---------------------------------------------------------------------------------


async def test_closing_the_backend_ends_open_requests_with_an_error(folder: Path) -> None:
    backend = LocalBackend(folder, device="cpu")
    stream = backend.decode(request(range(40), 900))
    await anext(stream)
    await backend.aclose()
    with pytest.raises(BackendError):
        async for _ in stream:
            pass
    with pytest.raises(BackendError):
        await backend.connect()
    await backend.aclose()


async def test_closing_a_backend_that_loads_ends_the_loading(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_folder(folder)
    loop, begun, go_on, names = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), list[str]()

    def tensor(name: str) -> torch.Tensor:
        names.append(name)
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        return checkpoint.tensor(name)

    def opened(_: Path) -> Checkpoint:
        return replace(checkpoint, tensor=tensor)

    monkeypatch.setattr("pasta_async.backends.local.adapter.open_checkpoint", opened)
    backend = LocalBackend(folder, device="cpu", dtype="float32")
    connecting = asyncio.create_task(backend.connect())
    await begun.wait()
    await backend.aclose()
    go_on.set()
    with pytest.raises(BackendError):
        await connecting
    assert len(names) == 1


def test_event_loops_share_a_backend_one_after_another(folder: Path) -> None:
    backend = LocalBackend(folder, device="cpu")

    async def once() -> list[int]:
        stream = backend.decode(request(range(30), 900))
        await anext(stream)  # left open: the loop closes it
        return await decoded(backend, request(range(30), 10))

    assert asyncio.run(once()) == asyncio.run(once())
    asyncio.run(backend.aclose())


# Failures ------------------------------------------------------------------------------------------------


def raising(*_: object) -> Any:
    raise RuntimeError("no")


@pytest.mark.parametrize("reset", [True, False])
async def test_a_failing_step_ends_every_request_and_the_engine_recovers(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    expected = await decoded(backend, request(range(30)))
    with monkeypatch.context() as patch:
        patch.setattr(CausalLM, "forward", raising)
        if not reset:
            patch.setattr(CausalLM, "clear", raising)
        requests = [request(range(20), 10), request(range(21), 10)]
        results = await asyncio.gather(*(read(backend, sent) for sent in requests), return_exceptions=True)
    causes = [result.__cause__ for result in results if isinstance(result, BackendError)]
    assert [type(cause) for cause in causes] == [RuntimeError, RuntimeError]
    assert await decoded(backend, request(range(30))) == expected


PROCESSORS: dict[str, Callable[[Any, Any], Any]] = {
    "raises": raising,
    "ends the process": lambda _, __: sys.exit(),
    "of another shape": lambda _, logits: logits[:5],
    "no array": lambda _, __: None,
    "one not a number": lambda _, logits: np.where(np.arange(512) == 7, np.nan, logits),
    "nothing possible": lambda _, logits: np.full_like(logits, -np.inf),
}
SAMPLINGS = [GREEDY, WARM, Sampling(temperature=1.0, top_k=3), Sampling(temperature=1.0, top_p=0.5)]


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
async def test_a_token_that_cannot_be_chosen_ends_no_other_request(
    backend: LocalBackend, processor: Any
) -> None:
    good = [request(range(i, i + 30), sampling=other, seed=i) for i, other in enumerate(SAMPLINGS)]
    alone = [await decoded(backend, wanted) for wanted in good]
    bad = [
        request(range(9, 30), 10, sampling=sampling, extra={"logits_processor": processor})
        for sampling in SAMPLINGS
    ]
    results = await asyncio.gather(
        *(decoded(backend, wanted) for wanted in [*good, *bad]), return_exceptions=True
    )
    assert results[: len(good)] == alone
    assert [type(result) for result in results[len(good) :]] == [BackendError] * len(SAMPLINGS)
    check_idle(backend)


# Options -------------------------------------------------------------------------------------------------


async def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    backend = LocalBackend(folder, device="cuda:200")
    with pytest.raises(InvalidRequestError):
        await backend.connect()
    await backend.aclose()


@pytest.mark.parametrize(
    "options", [{"slots": 0}, {"threads": "2"}, {"device": "tpu"}, {"speed": 1}], ids=str
)
def test_wrong_options_are_refused(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        LocalBackend(folder, **options)


async def test_the_rest_of_the_process_keeps_its_threads(folder: Path) -> None:
    torch.set_num_threads(2)  # each test begins with one
    backend = LocalBackend(folder, device="cpu")
    assert await decoded(backend, request(range(30), 2))
    assert torch.get_num_threads() == 2
    assert await asyncio.to_thread(torch.get_num_threads) == 2
    await backend.aclose()
