"""Requests of the HTTP backend: bodies, events, errors, aborts, time-outs, closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
)
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Piece
from tests.helpers.odd_server import (
    ABOUT,
    END,
    STOP,
    TAGS,
    A,
    OddServer,
    backend,
    event,
    good,
    pieces_of,
    sse,
    stream,
)

SYNC, CLOSE = TAGS[5], TAGS[4]
ONE = DecodeRequest("a", 0, (11,), 50, Sampling())


# What is sent ---------------------------------------------------------------------------------------------


async def test_everything_a_server_could_default_is_spelled_out() -> None:
    closed = event([CLOSE], finish_reason={"type": "stop", "matched": CLOSE})
    server = OddServer(decoding=[stream([sse([closed])])])
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
    engine = backend(server)
    await pieces_of(engine, sampling=sampling, seed=7, stop_ids=(CLOSE,), banned_ids=(13, CLOSE))
    [body] = server.sent("/generate")
    assert body["input_ids"] == [11, 12, 13] and body["stream"] is True and "routed_dp_rank" not in body
    assert body["sampling_params"] == {
        "max_new_tokens": 50,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.2,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "stop_token_ids": [CLOSE, END],
        "logit_bias": {"13": -1e4, str(CLOSE): -1e4},
    }


async def test_a_server_with_seeds_gets_one_each_time_and_no_min_p() -> None:
    about = ABOUT | {"enable_deterministic_inference": True}
    server = OddServer({"/server_info": about}, decoding=[good() for _ in range(4)])
    engine = backend(server)
    for seed in (7, None, None, None):
        await pieces_of(engine, seed=seed)
    first, *others = [body["sampling_params"]["sampling_seed"] for body in server.sent("/generate")]
    assert first == 7
    assert len({*others}) > 1  # without one, all requests would draw the same
    with pytest.raises(InvalidRequestError):
        await pieces_of(engine, sampling=Sampling(min_p=0.1))


async def test_the_drafts_of_speculative_decoding_take_room_of_the_context() -> None:
    eagle = {"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 4, "speculative_num_steps": 5}
    for about, length in ((eagle, 100 - (20 - 6)), ({"speculative_algorithm": "NGRAM"}, 100)):
        server = OddServer({"/server_info": ABOUT | about | {"speculative_num_draft_tokens": 8}})
        assert (await backend(server).connect()).context_length == length


async def test_what_the_server_prefers_for_its_model_holds_unless_a_request_says_otherwise() -> None:
    server = OddServer(decoding=[good(), good()])
    server.routes["/model_info"]["preferred_sampling_params"] = {
        "repetition_penalty": 1.1,
        "temperature": 2,
        "logit_bias": {"20": -5.0, "21": 1.0},
    }
    engine = backend(server)
    for sampling in (Sampling(), Sampling(repetition_penalty=1)):
        await pieces_of(engine, sampling=sampling, banned_ids=(21,))
    first, second = (body["sampling_params"] for body in server.sent("/generate"))
    assert first["temperature"] == 0 and first["logit_bias"] == {"20": -5.0, "21": -1e4}
    assert (first["repetition_penalty"], second["repetition_penalty"]) == (1.1, 1)


async def test_extra_fields_of_a_request_are_merged_into_its_body() -> None:
    server = OddServer(decoding=[good()])
    await pieces_of(backend(server), extra={"priority": 3, "sampling_params": {"min_new_tokens": 2}})
    [body] = server.sent("/generate")
    assert (body["priority"], body["input_ids"]) == (3, [11, 12, 13])
    assert body["sampling_params"]["min_new_tokens"] == 2 and body["sampling_params"]["top_p"] == 1.0


@pytest.mark.parametrize("ranks", [{"dp_size": 4}, {"dp_size": 1, "attn_dp_size": 4}], ids=str)
async def test_all_threads_of_an_answer_meet_one_cache(ranks: dict[str, int]) -> None:
    server = OddServer({"/server_info": ABOUT | ranks}, decoding=[good() for _ in range(60)])
    engine = backend(server)
    answers = [f"answer {number}" for number in range(20)]
    for thread in range(3):
        for answer in answers:
            await pieces_of(engine, answer=answer, thread=thread)
    sent = [body["routed_dp_rank"] for body in server.sent("/generate")]
    assert sent[:20] == sent[20:40] == sent[40:] and set(sent) == {0, 1, 2, 3}


# What comes back ------------------------------------------------------------------------------------------


def cumulative(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events in the form that repeats all ids so far."""
    ids: list[int] = []
    result: list[dict[str, Any]] = []
    for increment in events:
        ids = [*ids, *increment["output_ids"]]
        result.append({**increment, "output_ids": ids})
    return result


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_both_forms_of_streams_read_the_same_in_chunks_of_any_size(
    incremental: bool, size: int
) -> None:
    events = [
        event([40]),
        event([40], before=1),
        event([41, SYNC], before=2),
        event([42, END], before=4, finish_reason=STOP),
    ]
    content = b": still there\n\n" + sse(events if incremental else cumulative(events))
    chunks = [content[i : i + size] for i in range(0, len(content), size)]
    server = OddServer(decoding=[stream(chunks)])
    pieces = await pieces_of(backend(server))
    assert [piece.ids for piece in pieces] == [(40,), (40,), (41, SYNC), (42, END)]
    assert pieces[-1] == Piece((42, END), "stop", 1)
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    assert not server.sent("/abort_request")


@pytest.mark.parametrize(
    ("answer", "kind", "status"),
    [
        (stream([b"data: {not json}\n\n"]), BackendProtocolError, None),
        (stream([b"data: \xff\xfe\n\n"]), BackendProtocolError, None),
        (stream([b'data: ["a list"]\n\n']), BackendProtocolError, None),
        (stream([sse([{"text": "no ids"}])]), BackendProtocolError, None),
        (stream([sse([{"error": {"message": "too long", "code": 400}}])]), BackendStatusError, 400),
        (stream([sse([{"error": {"message": "gone", "code": "bad_gateway"}}])]), BackendStatusError, 500),
        (stream([sse([{"error": "worker lost"}])]), BackendStatusError, 500),
        (
            stream([sse([event([A], finish_reason={"type": "stop", "matched": "NaN happened"})])]),
            BackendStatusError,
            500,
        ),
        (
            stream([sse([event([A], finish_reason={"type": "abort", "message": "out of memory"})])]),
            BackendStatusError,
            503,
        ),
    ],
)
async def test_what_is_wrong_with_an_answer_is_told(
    answer: httpx.Response, kind: type[BackendError], status: int | None
) -> None:
    server = OddServer(decoding=[answer])
    with pytest.raises(kind) as caught:
        await pieces_of(backend(server))
    assert getattr(caught.value, "status", None) == status


async def test_calls_that_wait_for_a_handshake_share_its_failure() -> None:
    server = OddServer({"/server_info": httpx.Response(503)})
    engine = backend(server)
    errors = await asyncio.gather(*(engine.connect() for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in errors} == {BackendStatusError}
    asked = len(server.log)
    with pytest.raises(BackendStatusError):
        await engine.connect()
    assert len(server.log) == 2 * asked, "a later call tries again"


# One request for one decoding, and aborts only of what was begun -------------------------------------------

REFUSED = [
    httpx.Response(503, headers={"retry-after": "0"}, text="busy"),
    httpx.Response(429, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    httpx.Response(400, json={"error": {"message": "bad"}}),
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("silent"),
]
BROKEN = [
    httpx.ReadTimeout("silent"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    stream([b"data: {\n"]),
]


@pytest.mark.parametrize("failure", [*REFUSED, *BROKEN], ids=str)
async def test_a_request_is_sent_once_and_aborted_only_if_the_server_may_have_it(failure: Any) -> None:
    server = OddServer(decoding=[failure, good()])
    with pytest.raises(BackendError) as caught:
        await pieces_of(backend(server))
    [rid] = [body["rid"] for body in server.sent("/generate")]
    assert server.sent("/abort_request") == ([] if failure in REFUSED else [{"rid": rid}])
    assert caught.value.retryable is not (failure is REFUSED[2] or isinstance(caught.value, TimeoutError))


async def test_a_retry_after_is_handed_on() -> None:
    server = OddServer(decoding=[httpx.Response(429, headers={"retry-after": "7"}), REFUSED[1]])
    for seconds in (7.0, None):
        with pytest.raises(BackendStatusError) as caught:
            await pieces_of(backend(server))
        assert (caught.value.status, caught.value.retry_after) == (429, seconds)


# Ending early ---------------------------------------------------------------------------------------------


class Endless(httpx.AsyncByteStream):
    """An answer that goes on until it is aborted, or its connection is closed."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.reading = asyncio.Event()
        self.aborted = asyncio.Event()
        self.over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            if self.first:
                yield self.first
            self.reading.set()
            await self.aborted.wait()
        finally:
            self.over = True

    def abort(self, body: Any) -> httpx.Response:
        self.aborted.set()
        return httpx.Response(200)


BEGUN = sse([event([A])], done=False)


async def test_closing_early_aborts_the_request_and_reads_it_to_its_end() -> None:
    answer = Endless(BEGUN)
    server = OddServer({"/abort_request": answer.abort}, decoding=[stream(answer)])
    pieces = backend(server).decode(ONE)
    assert (await anext(pieces)).ids == (A,)
    await pieces.aclose()
    assert server.sent("/abort_request") == [{"rid": server.sent("/generate")[-1]["rid"]}]
    assert answer.over


@pytest.mark.parametrize("first", [b"", BEGUN])
@pytest.mark.parametrize(
    "abort",
    [httpx.Response(200), httpx.Response(403), httpx.ConnectError("gone")],
    ids=["200", "403", "gone"],
)
async def test_cancelling_aborts_the_request_and_stays_a_cancellation(first: bytes, abort: Any) -> None:
    answer = Endless(first)
    server = OddServer({"/abort_request": abort}, decoding=[stream(answer)])
    engine = backend(server)
    task = asyncio.create_task(pieces_of(engine))
    await answer.reading.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and answer.over
    assert server.sent("/abort_request") == [{"rid": server.sent("/generate")[-1]["rid"]}]
    await engine.aclose()


async def test_closing_ends_what_is_open_and_what_comes_after() -> None:
    answer, waiting = Endless(BEGUN), Endless()
    server = OddServer({"/abort_request": answer.abort}, decoding=[stream(answer), stream(waiting)])
    engine = backend(server)
    idle = engine.decode(ONE)
    await anext(idle)
    task = asyncio.create_task(pieces_of(engine))
    await waiting.reading.wait()
    await engine.aclose()
    with pytest.raises(BackendError):
        await task
    for work in (anext(idle), pieces_of(engine), engine.load()):
        with pytest.raises(BackendError):
            await work
    assert len(server.sent("/abort_request")) == 2 and answer.over and waiting.over
