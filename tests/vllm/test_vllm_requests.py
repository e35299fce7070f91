"""Requests to vLLM, and its replies, with a server that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from pasta_async.backends.vllm import VLLMBackend
from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    UnsupportedModelError,
)
from pasta_async.options import Sampling
from pasta_async.protocol import Model, Piece
from tests.helpers.odd_server import END, TAGS, A, B, OddServer, pieces_of, sse, stream
from tests.pasta_tiny import PASTA_TINY

CARD = {"id": "odd", "owned_by": "vllm", "root": str(PASTA_TINY), "max_model_len": 100}
ADAPTER = {"id": "small", "owned_by": "vllm", "root": "elsewhere", "parent": "odd"}
USAGE = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
LAST: dict[str, Any] = {"choices": [], "usage": USAGE}
"""The event behind all tokens."""


def metrics(
    counters: Mapping[str, float] | None = None, *, engines: int = 1, caching: bool = True
) -> httpx.Response:
    counters = counters or {}
    lines = list[str]()
    for engine in range(engines):
        values = {
            "num_requests_running": counters.get("running", 0),
            "num_requests_waiting": counters.get("waiting", 0) + counters.get("deferred", 0),
            "kv_cache_usage_perc": 0.25,
            "iteration_tokens_total_count": counters.get("steps", 0),
            "prompt_tokens_total": counters.get("prefilled", 0),
            "inter_token_latency_seconds_count": counters.get("waits", 0),
            "inter_token_latency_seconds_sum": counters.get("seconds", 0),
        }
        lines += [f'vllm:{name}{{engine="{engine}"}} {value}' for name, value in values.items()]
        reasons = {"capacity": counters.get("waiting", 0), "deferred": counters.get("deferred", 0)}
        for reason, value in reasons.items():
            lines.append(
                f'vllm:num_requests_waiting_by_reason{{engine="{engine}",reason="{reason}"}} {value}'
            )
        cache = f'enable_prefix_caching="{caching}",num_gpu_blocks="50"'
        lines.append(f'vllm:cache_config_info{{engine="{engine}",{cache}}} 1.0')
    return httpx.Response(200, text="# HELP\n" + "\n".join(lines))


def event(ids: list[int], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": "not read", "token_ids": ids, "finish_reason": reason}]}


def served(*replies: Any, **routes: Any) -> OddServer:
    """A server with these replies to requests that decode."""
    rest = [*replies]

    def next_reply(_: Any) -> Any:
        return rest.pop(0)

    usual: dict[str, Any] = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [CARD, ADAPTER]},
        "/metrics": metrics(),
        "/v1/completions": next_reply,
    }
    return OddServer(usual | {f"/{name}": route for name, route in routes.items()})


def backend(server: OddServer, **options: Any) -> VLLMBackend:
    return VLLMBackend("http://odd", client=server.client(), **options)


async def connected(server: OddServer, **options: Any) -> Model:
    return await backend(server, **options).connect()


def good() -> httpx.Response:
    return stream([sse([event([A]), event([B, END], "stop"), LAST])])


async def test_everything_a_server_could_default_is_spelled_out_but_the_models_own_penalty() -> None:
    server = served(good(), good())
    engine = backend(server, model="small")
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
    await pieces_of(engine, sampling=sampling, seed=7, stop_ids=(TAGS[4],), banned_ids=(13, TAGS[4]))
    await pieces_of(engine, extra={"ignore_eos": True})
    first, second = server.sent("/v1/completions")
    assert first == {
        **{"model": "small", "prompt": [11, 12, 13], "max_tokens": 50, "stream": True},
        **{"stream_options": {"include_usage": True}, "return_token_ids": True},
        **{"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
        **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": 7, "ignore_eos": False},
        "stop_token_ids": [TAGS[4], END],
        "logit_bias": {"13": -100.0, str(TAGS[4]): -100.0},
    }
    assert second["ignore_eos"] is True
    assert not second.keys() & {"repetition_penalty", "seed", "logit_bias"}


async def test_a_server_with_drafts_is_asked_without_a_bias() -> None:
    plain = metrics().text
    drafts = httpx.Response(200, text=f'{plain}\nvllm:spec_decode_num_drafts_total{{engine="0"}} 0.0')
    server = served(good(), metrics=drafts)
    await pieces_of(backend(server), banned_ids=(13,))
    assert "logit_bias" not in server.sent("/v1/completions")[0]


@pytest.mark.parametrize("size", [1, 10_000])
async def test_the_last_piece_waits_for_what_was_cached(size: int) -> None:
    events = [event([A]), event([B, END], "stop"), LAST]
    content = sse(events)
    chunks = [content[i : i + size] for i in range(0, len(content), size)]
    engine = backend(served(stream(chunks)))
    assert await pieces_of(engine) == [Piece((A,)), Piece((B, END), "stop", 2)]


async def test_a_model_is_what_the_server_says() -> None:
    model = await connected(served())
    assert (model.name, model.context_length, model.tags, model.end_ids) == ("odd", 100, TAGS, (END,))
    assert model.honours_seeds and "no grammar" in " ".join(model.notes)
    assert (await connected(served(), model="small")).name == "small"
    with pytest.raises(BackendError, match=r"0\.31\.1"):
        await connected(served(version={"version": "0.31.1"}))
    no_cache = await connected(served(metrics=metrics(caching=False)))
    assert any("--enable-prefix-caching" in note for note in no_cache.notes)
    with pytest.raises(UnsupportedModelError, match="there is odd, small"):
        await connected(served(), model="large")


async def test_a_request_that_the_engine_gave_up_may_be_sent_again() -> None:
    with pytest.raises(BackendStatusError, match="abort") as caught:
        await pieces_of(backend(served(stream([sse([event([A], "abort")])]))))
    assert caught.value.retryable


async def test_all_threads_of_an_answer_meet_one_engine() -> None:
    server = served(*(good() for _ in range(6)), metrics=metrics(engines=4))
    engine = backend(server)
    for _ in range(6):
        await pieces_of(engine)
    sent = [headers for headers in server.headers if "x-session-id" in headers]
    assert len(sent) == 6 and len({headers["x-data-parallel-rank"] for headers in sent}) == 1


async def test_the_load_is_reckoned_from_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 0.0)
    server = served()
    engine = backend(server)
    counted = {"steps": 0.0, "waits": 0.0, "seconds": 0.0}
    load = None
    for batch in [1, 16] * 10:  # a step takes 10 ms, and 0.5 ms for each request
        growth = {"steps": 10, "waits": 10 * batch, "seconds": 10 * batch * (0.01 + 0.0005 * batch)}
        counted = {name: value + growth[name] for name, value in counted.items()}
        server.routes["/metrics"] = metrics({**counted, "running": batch})
        load = await engine.load()
    assert load is not None and load.step_doubles_at == pytest.approx(20)
    assert (load.running, load.queued, load.kv_use, load.capacity) == (16, 0, 0.25, 50)
    mixed = {"running": 5, "waiting": 3, "steps": 1e6, "waits": 1e6, "seconds": 1e6, "prefilled": 7}
    server.routes["/metrics"] = metrics(mixed)  # a step that prefilled says nothing
    assert await engine.load() == type(load)(16, 5, 3, 0.25, load.step_doubles_at)
    server.routes["/metrics"] = metrics({**mixed, "running": 0, "waiting": 0, "deferred": 2})  # by a grammar
    assert await engine.load() == type(load)(50, 0, 2, 0.25, load.step_doubles_at)
    server.routes["/metrics"] = httpx.Response(200, text="nothing")
    with pytest.raises(BackendProtocolError, match="none of vLLM's metrics"):
        await engine.load()
