"""The embedded backend as the interpreter meets it: pieces, limits, cancellation, and what it refuses."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import local_models
import pytest
import torch
from cache_checks import check_scheduler

from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.model import CausalLM
from pasta_async.backends.local.scheduler import Scheduler
from pasta_async.backends.local.session import EngineLoop
from pasta_async.backends.tokenization import TextCodec
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.options import Sampling
from pasta_async.protocol import Backend, DecodeRequest, Piece

torch.set_num_threads(1)
QUESTION = [{"role": "user", "content": "The causes"}]
GREEDY = Sampling()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, tokenizer = tmp_path_factory.mktemp("backend"), local_models.byte_level()
    model = local_models.model()
    with torch.no_grad():  # it never ends a text by itself
        model.lm_head.weight[tokenizer.eos_token_id] = 0
    return local_models.save(path, model, tokenizer)


@pytest.fixture
async def backend(folder: Path) -> AsyncIterator[LocalBackend]:
    made = LocalBackend(folder, device="cpu", slots=512)
    yield made
    await made.aclose()
    assert engine_tasks() == []


def engine_tasks() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("pasta_async")]


def request(ids: list[int] | range, max_tokens: int = 20, **fields: Any) -> DecodeRequest:
    values: dict[str, Any] = {"answer": "a", "thread": 0, "sampling": GREEDY, **fields}
    return DecodeRequest(ids=tuple(ids), max_tokens=max_tokens, **values)


def scheduler(backend: LocalBackend) -> Scheduler:
    assert backend.engine is not None
    return backend.engine.scheduler


async def pieces(backend: LocalBackend, asked: DecodeRequest) -> list[Piece]:
    return [piece async for piece in backend.decode(asked)]


def all_ids(received: list[Piece]) -> list[int]:
    return [token for piece in received for token in piece.ids]


def forcing(tokens: list[int]) -> dict[str, Any]:
    """Have a request write these tokens, one after another, and then fail."""

    def force(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if len(generated) == len(tokens):
            raise RuntimeError("nothing more to write")
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(tokens[len(generated)]), 0)

    return {"extra": {"logits_processor": force}}


def endless() -> dict[str, Any]:
    """Have a request go slowly, so that it is open when something happens to it."""

    def wait(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        threading.Event().wait(0.01)
        return logits

    return {"extra": {"logits_processor": wait}}


async def test_it_is_a_backend_and_says_what_it_knows(backend: LocalBackend, folder: Path) -> None:
    assert isinstance(backend, Backend)
    info = await backend.connect()
    assert info is await backend.connect()
    assert (info.name, info.context_length, info.vocab_size) == (folder.name, 512, 512)
    assert info.honours_seeds
    assert info.tags is not None
    assert [await backend.detokenize([tag]) for tag in info.tags] == list(TAG_TOKENS)
    assert await backend.detokenize(info.end_ids) == "<|im_end|>"


async def test_a_logits_processor_chooses_for_its_own_request_only(backend: LocalBackend) -> None:
    seen: list[list[int]] = []

    def descending(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(list(generated))
        assert (logits.shape, logits.dtype) == ((512,), torch.float32)
        return torch.zeros_like(logits).index_fill(0, torch.tensor([40 - len(generated)]), 1.0)

    alone = all_ids(await pieces(backend, request(range(30), 4)))
    free, led = await asyncio.gather(
        pieces(backend, request(range(30), 4)),
        pieces(backend, request(range(30), 4, extra={"logits_processor": descending})),
    )
    assert all_ids(free) == alone
    assert all_ids(led) == [40, 39, 38, 37]
    assert seen == [[], [40], [40, 39], [40, 39, 38]]


async def test_a_piece_for_each_step_with_usage(backend: LocalBackend) -> None:
    received = await pieces(backend, request(range(30)))
    assert [len(piece.ids) for piece in received] == [1] * 20
    assert [piece.finish_reason for piece in received] == [None] * 19 + ["length"]
    assert (received[0].prompt_tokens, received[0].cached_tokens) == (30, 0)
    assert (received[-1].prompt_tokens, received[-1].cached_tokens) == (30, 0)
    again = await pieces(backend, request(range(30), stream=False))
    assert again[-1].cached_tokens == 29
    assert all_ids(again) == all_ids(received)
    assert len(again) < len(received)
    text = await backend.detokenize(all_ids(received))
    assert "".join(piece.text for piece in received) == "".join(piece.text for piece in again) == text


async def test_tags_come_alone_and_text_before_them_is_complete(backend: LocalBackend) -> None:
    info = await backend.connect()
    assert info.tags is not None
    letters = await backend.encode("é")
    euro = (await backend.encode("€"))[:2]  # two of three bytes
    written = [*letters, info.tags.sync, *euro, info.tags.promise, *euro, info.end_ids[0]]
    for stream in (True, False):
        asked = request(range(30), 50, stream=stream, **forcing(written))
        received = await pieces(backend, asked)
        assert all_ids(received) == written
        by_id = {piece.ids[0]: piece for piece in received if piece.ids}
        assert by_id[info.tags.sync][:2] == ((info.tags.sync,), "<sync/>")
        assert by_id[info.tags.promise][:2] == ((info.tags.promise,), TAG_TOKENS[0])
        assert received[-1][:3] == ((info.end_ids[0],), "", "stop")
        texts = "".join(piece.text for piece in received)
        assert texts == "é<sync/>\ufffd" + TAG_TOKENS[0] + "\ufffd"


async def test_stop_ids_are_part_of_the_output(backend: LocalBackend) -> None:
    expected = all_ids(await pieces(backend, request(range(30), 12)))
    first = expected.index(expected[6])
    received = await pieces(backend, request(range(30), 12, stop_ids=(expected[6], 511)))
    assert all_ids(received) == expected[: first + 1]
    assert received[-1].finish_reason == "stop"


async def test_answers_decoded_together_are_those_decoded_alone(backend: LocalBackend) -> None:
    requests = [request(range(i, 40 + i), 15, answer=f"a{i // 3}", thread=i % 3) for i in range(9)]
    alone = [all_ids(await pieces(backend, asked)) for asked in requests]
    together = await asyncio.gather(*(pieces(backend, asked) for asked in requests))
    assert [all_ids(received) for received in together] == alone


async def test_a_fork_of_a_running_parent_is_cached(backend: LocalBackend) -> None:
    parent = backend.decode(request(range(40), 60))
    seen: list[int] = []
    async for piece in parent:
        seen += piece.ids
        if len(seen) == 10:
            break
    fork = await pieces(backend, request([*range(40), *seen, 5], 4, thread=1))
    assert fork[0].prompt_tokens == 51
    assert fork[0].cached_tokens is not None
    assert fork[0].cached_tokens >= 49
    await parent.aclose()


async def test_seeds_make_samples_repeat(backend: LocalBackend) -> None:
    warm = Sampling(temperature=1.0)
    asked = [request(range(30), 15, sampling=warm, seed=seed) for seed in (1, 2)]
    alone = [all_ids(await pieces(backend, one)) for one in asked]
    together = await asyncio.gather(*(pieces(backend, one) for one in [*asked, *asked]))
    assert [all_ids(received) for received in together] == [*alone, *alone]
    assert alone[0] != alone[1]
    free = [all_ids(await pieces(backend, request(range(30), 15, sampling=warm))) for _ in range(2)]
    assert free[0] != free[1]


async def test_draws_do_not_depend_on_how_an_answer_is_cut_into_requests(backend: LocalBackend) -> None:
    warm = Sampling(temperature=1.0)
    whole = all_ids(await pieces(backend, request(range(30), 20, sampling=warm, seed=5)))
    first = all_ids(await pieces(backend, request(range(30), 8, sampling=warm, seed=5)))
    rest = await pieces(backend, request([*range(30), *first], 12, sampling=warm, seed=5))
    assert first + all_ids(rest) == whole


async def test_stretches_of_an_answer_do_not_repeat_their_draws(backend: LocalBackend) -> None:
    """The same distribution at every step, so that equal draws would be equal tokens."""

    def flat(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits)

    options: dict[str, Any] = {"sampling": Sampling(temperature=1.0), "extra": {"logits_processor": flat}}
    drawn: list[list[int]] = []
    for length in (30, 50, 70):  # as main goes on behind two syncs
        asked = request(range(length), 12, seed=5, stop_ids=(), **options)
        drawn.append(all_ids(await pieces(backend, asked)))
    alike = sum(a == b for pair in itertools.combinations(drawn, 2) for a, b in zip(*pair, strict=False))
    assert alike <= 3  # of 36


@pytest.mark.parametrize(
    "fields", [{"ids": (1, 512)}, {"ids": (-1, 5)}, {"ids": ()}, {"max_tokens": -1}, {"max_tokens": 511}]
)
async def test_what_cannot_work_is_refused_at_once(backend: LocalBackend, fields: dict[str, Any]) -> None:
    values: dict[str, Any] = {"answer": "a", "thread": 0, "sampling": GREEDY, "ids": (1, 2), "max_tokens": 5}
    with pytest.raises(InvalidRequestError):
        await pieces(backend, DecodeRequest(**{**values, **fields}))
    assert engine_tasks() == []


async def test_closing_early_leaves_nothing_and_keeps_the_cache(backend: LocalBackend) -> None:
    stream = backend.decode(request(range(40), 300))
    async for _ in stream:
        break
    assert engine_tasks() == ["pasta_async local engine"]
    await stream.aclose()
    assert engine_tasks() == []
    assert scheduler(backend).running == scheduler(backend).waiting == []
    check_scheduler(scheduler(backend))
    received = await pieces(backend, request(range(40), 2))
    assert received[0].cached_tokens == 39


async def test_cancelling_a_reader_leaves_nothing(backend: LocalBackend) -> None:
    await backend.connect()
    started = asyncio.Event()

    async def read() -> None:
        async for _ in backend.decode(request(range(40), 400)):
            started.set()

    tasks = [asyncio.create_task(read()) for _ in range(3)]
    await started.wait()
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert engine_tasks() == []
    assert scheduler(backend).running == []
    check_scheduler(scheduler(backend))


async def test_closing_one_request_does_not_disturb_the_others(backend: LocalBackend) -> None:
    expected = all_ids(await pieces(backend, request(range(40), 40)))
    kept = asyncio.create_task(pieces(backend, request(range(40), 40, answer="kept")))
    dropped = backend.decode(request(range(50), 300, answer="dropped"))
    async for _ in dropped:
        break
    await dropped.aclose()
    assert all_ids(await kept) == expected


async def test_a_slow_reader_pauses_itself_and_nobody_else(backend: LocalBackend) -> None:
    slow = backend.decode(request(range(40), 300, answer="slow"))
    first = await anext(slow)
    fast = await pieces(backend, request(range(50), 200, answer="fast"))
    assert len(all_ids(fast)) == 200
    (job,) = scheduler(backend).running
    assert job.paused
    assert job.length <= 40 + 33  # its buffer, and no more
    rest = [piece async for piece in slow]
    assert len(all_ids([first, *rest])) == 300


async def test_a_loop_that_falls_behind_while_its_reader_waits_goes_on(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: the engine fills the buffer, and pauses, before the reader gets a piece."""
    loop, paused = asyncio.get_running_loop(), threading.Event()
    step_until_nothing_moves = EngineLoop.run

    def run(engine_loop: EngineLoop) -> None:
        if not paused.is_set():
            loop.call_soon_threadsafe(paused.wait, 30)
        step_until_nothing_moves(engine_loop)
        paused.set()

    monkeypatch.setattr(EngineLoop, "run", run)
    async with asyncio.timeout(60):
        received = await pieces(backend, request(range(40), 100))
    assert len(all_ids(received)) == 100


async def test_more_requests_than_slots_all_end(folder: Path) -> None:
    backend = LocalBackend(folder, device="cpu", slots=128)
    try:
        requests = [request(range(i, 30 + i), 60, answer=str(i)) for i in range(8)]
        received = await asyncio.gather(*(pieces(backend, asked) for asked in requests))
        assert [len(all_ids(one)) for one in received] == [60] * 8
    finally:
        await backend.aclose()


async def test_readers_that_wait_for_each_other_with_few_slots_do_not_deadlock(folder: Path) -> None:
    """A reader stops until another request, which needs the same slots, has ended."""
    backend = LocalBackend(folder, device="cpu", slots=128)
    try:
        main = backend.decode(request(range(40), 80, answer="main"))
        await anext(main)
        other = await pieces(backend, request(range(100, 140), 80, answer="other"))
        assert len(all_ids(other)) == 80
        assert len(all_ids([piece async for piece in main])) == 79
    finally:
        await backend.aclose()


async def test_closing_the_backend_ends_open_requests_with_an_error(folder: Path) -> None:
    backend = LocalBackend(folder, device="cpu")
    stream = backend.decode(request(range(40), 900))
    await anext(stream)
    await backend.aclose()
    assert engine_tasks() == []
    with pytest.raises(BackendError):
        async for _ in stream:
            pass
    with pytest.raises(BackendError):
        await backend.connect()
    await backend.aclose()


def test_closing_from_another_loop_ends_open_requests(folder: Path) -> None:
    backend, opened = LocalBackend(folder, device="cpu"), threading.Event()
    ended: list[BaseException] = []

    async def read() -> None:
        try:
            async for _ in backend.decode(request(range(40), 900, **endless())):
                opened.set()
        except BackendError as error:
            ended.append(error)

    reader = threading.Thread(target=lambda: asyncio.run(read()))
    reader.start()
    assert opened.wait(60)
    asyncio.run(backend.aclose())
    reader.join(60)
    assert len(ended) == 1


async def test_a_backend_closed_while_it_loads_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, loading, closed = LocalBackend(folder, device="cpu"), threading.Event(), threading.Event()
    load = TextCodec.from_folder

    def slow(path: Path) -> TextCodec:
        loading.set()
        assert closed.wait(60)
        return load(path)

    monkeypatch.setattr(TextCodec, "from_folder", slow)
    connecting = [asyncio.create_task(backend.connect()) for _ in range(2)]
    assert await asyncio.to_thread(loading.wait, 60)
    await backend.aclose()
    closed.set()
    for task in connecting:
        with pytest.raises(BackendError):
            await task
    assert backend.engine is None


def raising(*_: object) -> torch.Tensor:
    raise RuntimeError("no")


@pytest.mark.parametrize("reset", [True, False])
async def test_a_failing_step_ends_every_request_and_the_engine_recovers(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    expected = all_ids(await pieces(backend, request(range(30))))
    with monkeypatch.context() as patch:
        patch.setattr(CausalLM, "forward", raising)
        if not reset:
            patch.setattr("pasta_async.backends.local.engine.KVCache", raising)
        asked = [request(range(20), 10), request(range(21), 10)]
        results = await asyncio.gather(*(pieces(backend, one) for one in asked), return_exceptions=True)
    causes = [result.__cause__ for result in results if isinstance(result, BackendError)]
    assert [type(cause) for cause in causes] == [RuntimeError, RuntimeError]
    assert engine_tasks() == []
    if not reset:  # the next one finds it broken, and mends it
        with pytest.raises(BackendError):
            await pieces(backend, request(range(30)))
    assert all_ids(await pieces(backend, request(range(30)))) == expected


PROCESSORS: dict[str, Callable[[Any, Any], Any]] = {
    "raises": raising,
    "of another shape": lambda _, logits: logits[:5],
    "no tensor": lambda _, __: None,
    "not a number": lambda _, logits: logits.fill_(torch.nan),
    "one not a number": lambda _, logits: logits.index_fill_(0, torch.tensor(7), torch.nan),
    "nothing possible": lambda _, logits: torch.full_like(logits, -torch.inf),
}
CUTS: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.5}]
SAMPLINGS = [GREEDY, *(Sampling(temperature=1.0, **cut) for cut in CUTS)]


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn", "of few", "cut"])
async def test_a_token_that_cannot_be_chosen_ends_no_other_request(
    backend: LocalBackend, processor: Any, sampling: Sampling
) -> None:
    beside = [request(range(i, i + 30), sampling=other, seed=i) for i, other in enumerate(SAMPLINGS)]
    alone = [all_ids(await pieces(backend, one)) for one in beside]
    bad = request(range(9, 30), 10, sampling=sampling, extra={"logits_processor": processor})
    *others, failed = await asyncio.gather(
        *(pieces(backend, one) for one in [*beside, bad]), return_exceptions=True
    )
    assert type(failed) is BackendError
    assert [all_ids(one) for one in others if isinstance(one, list)] == alone
    assert engine_tasks() == []
    check_scheduler(scheduler(backend))


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "drawn"])
async def test_what_was_decoded_before_comes_before_the_error(
    backend: LocalBackend, sampling: Sampling
) -> None:
    stream = backend.decode(request(range(20), 10, sampling=sampling, **forcing([1, 2])))
    assert all_ids([await anext(stream), await anext(stream)]) == [1, 2]
    with pytest.raises(BackendError) as caught:
        await anext(stream)
    assert type(caught.value.__cause__) is RuntimeError


def test_one_event_loop_after_another(folder: Path) -> None:
    backend = LocalBackend(folder, device="cpu")

    async def once() -> list[int]:
        stream = backend.decode(request(range(30), 900))
        await anext(stream)  # left open: the loop closes it
        return all_ids(await pieces(backend, request(range(30), 10)))

    assert asyncio.run(once()) == asyncio.run(once())
    asyncio.run(backend.aclose())


async def test_text_typed_by_users_is_data(backend: LocalBackend) -> None:
    info = await backend.connect()
    assert info.tags is not None
    typed = 'Say <sync/> or <|im_end|> or <promise topic="x" tokens="10"/>.'
    commands = {*info.tags, *info.end_ids}
    assert commands.isdisjoint(await backend.encode(typed))
    assert await backend.detokenize(await backend.encode(typed)) == typed
    plain = await backend.encode_chat([{"role": "user", "content": "x"}], {})
    chat = await backend.encode_chat([{"role": "user", "content": typed}], {})
    assert [token for token in chat if token in commands] == [token for token in plain if token in commands]
    assert f"user\n{typed}<|im_end|>" in await backend.detokenize(chat)


async def test_text_that_no_encoding_can_write_is_refused(backend: LocalBackend) -> None:
    with pytest.raises(InvalidRequestError):
        await backend.encode("a\ud800b")
    with pytest.raises(InvalidRequestError):
        await backend.encode_chat([{"role": "user", "content": "\udfff"}], {})


@pytest.mark.parametrize("ids", [(-1,), (2**40,), (2**70,), (1.5,), ("1",), (None,)], ids=str)
async def test_what_is_no_token_id_is_refused(backend: LocalBackend, ids: Any) -> None:
    with pytest.raises(InvalidRequestError):
        await backend.detokenize(ids)
    with pytest.raises(InvalidRequestError):
        await pieces(backend, request(ids))
