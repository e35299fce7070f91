"""Replies whose fields hold what they must not: an answer, or an error of the library, and never another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import httpx
import pytest
from odd_server import END, STOP, OddServer, backend, event, sse, stream

from pasta_async import Client, Limits
from pasta_async.errors import BackendProtocolError, PastaError
from pasta_async.results import Generation

VALUES: list[Any] = [
    *("x", "9" * 5000, None, True, -1, 0, 1.5, float("nan"), float("inf"), [], {}),
    *(10**400, -(10**400), [10**400]),
]
EVENT = event([107, 108, END], 3, finish_reason=STOP)
RANK: dict[str, Any] = {
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "max_running_requests": 64,
    "token_usage": 0.25,
    "decode_moments": [1000, 2000, 3_000_000, 8000, 7_000_000, 20],
    "total_prefill_uncached_tokens": 1000,
    "total_prefill_busy_us": 50_000,
}
LOADS = "/v1/loads"
REPLIES: dict[str, Any] = {
    "/workers": {"workers": [{"url": "http://odd", "is_healthy": True}]},
    "/server_info": {"version": "0.5.23", "incremental_streaming_output": True},
    "/model_info": {"model_path": "odd", "is_generation": True, "preferred_sampling_params": {}},
    "/v1/models": {"data": [{"id": "odd", "max_model_len": 9000}]},
    "/tokenize": {"tokens": [[107]]},
    "/detokenize": {"text": ["a"]},
    LOADS: {"loads": [RANK]},
    "an event": EVENT,
    "an error": {"error": {"message": "no", "code": 400}},
}
PLACES: dict[str, list[Sequence[str | int]]] = {
    "/workers": [["workers"], ["workers", 0], ["workers", 0, "url"], ["workers", 0, "is_healthy"]],
    "/server_info": [
        *(["version"], ["incremental_streaming_output"], ["enable_deterministic_inference"], ["dp_size"]),
        *(["skip_tokenizer_init"], ["max_req_input_len"], ["internal_states"]),
    ],
    "/model_info": [
        *(["model_path"], ["served_model_name"], ["is_generation"], ["preferred_sampling_params"]),
        *([["preferred_sampling_params", name] for name in ("repetition_penalty", "logit_bias")]),
    ],
    "/v1/models": [["data"], ["data", 0], ["data", 0, "max_model_len"]],
    "/tokenize": [["tokens"], ["tokens", 0], ["tokens", 0, 0]],
    "/detokenize": [["text"], ["text", 0]],
    LOADS: [
        *(["loads"], ["loads", 0], *(["loads", 0, name] for name in RANK)),
        *(["loads", 0, "decode_moments", number] for number in range(6)),
    ],
    "an event": [
        *(["text"], ["output_ids"], ["output_ids", 1], ["meta_info"], ["meta_info", "id"]),
        *(["meta_info", name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")),
        *(["meta_info", "finish_reason"], ["meta_info", "finish_reason", "type"]),
        ["meta_info", "finish_reason", "matched"],
    ],
    "an error": [["error"], ["error", "message"], ["error", "code"]],
}
FIELDS = [(what, place) for what, places in PLACES.items() for place in places]


def changed(what: str, place: Sequence[str | int], value: Any) -> Any:
    """A good reply with another value in one place."""
    reply = deepcopy(REPLIES[what])
    inner = reply
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return reply


def serving(what: str, reply: Any) -> OddServer:
    """A server that is a good one but for this."""
    content = json.dumps(reply)
    routes = {route: REPLIES[route] for route in ("/v1/models", LOADS)}
    if what.startswith("/"):
        routes[what] = httpx.Response(200, text=content)
    server = OddServer(routes)
    events = sse([EVENT]) if what.startswith("/") else f"data: {content}\n\ndata: [DONE]\n\n".encode()
    server.decoding = [stream([events]) for _ in range(4)]
    return server


async def answer(server: OddServer) -> Generation:
    made = backend(server)
    try:
        async with Client(made, limits=Limits(timeout=30, retries=0)) as client:
            return await client.generate("x", max_tokens=8)
    finally:
        await made.aclose()


async def failure(server: OddServer) -> Exception | None:
    try:
        await answer(server)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(("what", "place"), FIELDS, ids=str)
async def test_whatever_a_field_holds_is_an_answer_or_an_error_of_the_library(
    what: str, place: Sequence[str | int]
) -> None:
    found = [(value, await failure(serving(what, changed(what, place, value)))) for value in VALUES]
    assert not [(value, error) for value, error in found if error and not isinstance(error, PastaError)]
    assert what != LOADS or not any(error for _, error in found)  # what is not known of the load ends nothing


@pytest.mark.parametrize(
    "moments",
    [[64, 1e200, 1, 1e300, 1e308, 1], [64, 1e18, 1e18, 1e18, 1e18, 1], [1e18] * 6, [64, 0, 0, 1e18, 0, 0]],
)
async def test_extreme_moments_end_no_answer(moments: list[float]) -> None:
    server = serving(LOADS, changed(LOADS, ["loads", 0, "decode_moments"], moments))
    assert (await answer(server)).text == "ab"
    assert server.sent(LOADS)


@pytest.mark.parametrize("field", ["cached_tokens", "prompt_tokens", "completion_tokens"])
async def test_what_came_before_a_malformed_event_is_kept(field: str) -> None:
    server = serving(LOADS, REPLIES[LOADS])
    malformed = event([108, END], 3, finish_reason=STOP)
    malformed["meta_info"][field] = "x"
    server.decoding = [stream([sse([event([107], 1), malformed])])]
    with pytest.raises(PastaError) as caught:
        await answer(server)
    assert isinstance(caught.value.__cause__, BackendProtocolError)
    assert caught.value.partial and caught.value.partial.text == "a"


@pytest.mark.parametrize("length", [0, -1, -5])
async def test_a_context_of_nothing_is_refused_before_a_text_is_sent(length: int) -> None:
    server = serving("/v1/models", changed("/v1/models", ["data", 0, "max_model_len"], length))
    assert isinstance(await failure(server), BackendProtocolError)
    assert not server.sent("/tokenize")


async def test_no_more_is_read_of_a_reply_than_it_may_hold() -> None:
    biases = dict.fromkeys(map(str, range(2**16 + 1)), 1.0)
    place = ["preferred_sampling_params", "logit_bias"]
    server = serving("/model_info", changed("/model_info", place, biases))
    assert isinstance(await failure(server), BackendProtocolError)


@pytest.mark.parametrize("what", [what for what in REPLIES if "token" not in what and what != "an error"])
async def test_the_replies_above_are_good_ones_but_for_the_field(what: str) -> None:
    assert (await answer(serving(what, REPLIES[what]))).text == "ab"
