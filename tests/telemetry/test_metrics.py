"""Metrics are what the answers' own records say, read back from the text that Prometheus reads."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest
from prometheus_client import CollectorRegistry
from samples import DOCUMENT, Samples

from pasta_async import (
    BackendError,
    Client,
    Generation,
    InvalidRequestError,
    Limits,
    Model,
    ThreadFailedError,
    ThreadStarted,
)
from pasta_async.telemetry.metrics import Metrics
from pasta_async.testing import Fault, ScriptedBackend


def check_against(samples: Samples, generations: list[Generation]) -> None:
    """Hold a scrape against the records of the only answers there were."""
    threads = [thread for each in generations for thread in each.threads]
    requests = [request for thread in threads for request in thread.requests]
    usages = [each.usage for each in generations]
    assert samples.value("pasta_answers_total") == len(generations)
    assert samples.value("pasta_threads_total", kind="main") == len(generations)
    assert samples.value("pasta_threads_total") == len(threads)
    assert samples.value("pasta_requests_total") == len(requests) == sum(usage.requests for usage in usages)
    for width, count in Counter(each.width for each in generations).items():
        assert samples.value("pasta_answer_widths_total", width=width) == count
    for finish_reason, count in Counter(request.finish_reason for request in requests).items():
        assert samples.value("pasta_requests_total", finish_reason=str(finish_reason)) == count
    assert samples.value("pasta_prompt_tokens_total") == sum(usage.prompt_tokens for usage in usages)
    assert samples.value("pasta_cached_tokens_total") == sum(usage.cached_tokens for usage in usages)
    assert samples.value("pasta_prefilled_tokens_total") == sum(usage.prefilled_tokens for usage in usages)
    assert samples.value("pasta_generation_tokens_total") == sum(u.completion_tokens for u in usages)
    main = sum(each.threads[0].tokens for each in generations)
    assert samples.value("pasta_generation_tokens_total", kind="main") == main
    assert samples.value("pasta_critical_path_tokens_total") == sum(g.critical_path for g in generations)
    assert samples.value("pasta_text_tokens_total") == sum(g.text_tokens for g in generations)
    assert samples.value("pasta_diagnostics_total") == sum(len(g.diagnostics) for g in generations)


def check_idle(samples: Samples) -> None:
    assert "pasta_answers_in_flight" in samples.names
    for what in ("answers_in_flight", "threads_decoding", "threads_waiting"):
        assert samples.value(f"pasta_{what}") == 0


async def test_what_answers_did_in_parallel_and_in_sequence() -> None:
    registry = CollectorRegistry()
    client = Client(ScriptedBackend(DOCUMENT), observers=[Metrics(registry)])
    generations = [await client.generate("x", baseline=baseline) for baseline in (False, False, True)]
    samples = Samples.of(registry)
    check_against(samples, generations)
    check_idle(samples)
    assert samples.value("pasta_threads_total", kind="chunk", finish_reason="stop") == 4
    assert samples.value("pasta_answer_threads_sum") == 7
    assert samples.value("pasta_chunk_time_to_first_token_seconds_count") == 4
    for name, expected in (
        ("answer_duration_seconds", [each.elapsed for each in generations]),
        ("time_to_first_token_seconds", [each.threads[0].first_token or 0 for each in generations]),
        ("text_speedup_ratio", [each.text_speedup for each in generations]),
    ):
        assert samples.value(f"pasta_{name}_count", model_name="scripted") == 3
        assert samples.value(f"pasta_{name}_sum") == pytest.approx(sum(expected))


async def test_failures_are_counted_by_their_class_and_retries_as_requests() -> None:
    registry = CollectorRegistry()
    faults = [Fault(thread=1, after_tokens=0, retryable=True), Fault(thread=2, after_tokens=1, times=9)]
    client = Client(ScriptedBackend(DOCUMENT, faults=faults), observers=[Metrics(registry)])
    with pytest.raises(ThreadFailedError) as failure:
        await client.generate("x")
    samples = Samples.of(registry)
    assert failure.value.partial
    check_against(samples, [failure.value.partial])
    check_idle(samples)
    assert samples.value("pasta_answers_total", finish_reason="error") == 1
    assert samples.value("pasta_answer_errors_total", error_type="BackendError") == 1
    assert samples.value("pasta_request_errors_total", error_type="BackendError") == 2
    assert samples.value("pasta_requests_total", finish_reason="error") == 2
    assert samples.value("pasta_text_speedup_ratio_count") == 0


async def test_what_fails_before_it_begins() -> None:
    class Unreachable(ScriptedBackend):
        async def connect(self) -> Model:
            raise BackendError("nobody there")

    registry = CollectorRegistry()
    client = Client(Unreachable(DOCUMENT), observers=[Metrics(registry)])
    with pytest.raises(BackendError):
        await client.generate("x")
    with pytest.raises(InvalidRequestError):
        await client.generate("")
    samples = Samples.of(registry)
    check_idle(samples)
    for reason in ("error", "refused"):
        assert samples.value("pasta_answers_total", finish_reason=reason, model_name="unknown") == 1
    assert samples.value("pasta_answer_errors_total") == 1
    assert samples.value("pasta_answer_errors_total", error_type="BackendError") == 1


async def test_a_cancelled_answer_aborts_its_requests() -> None:
    registry = CollectorRegistry()
    stalls = [Fault(thread=1, after_tokens=1, kind="stall"), Fault(thread=2, after_tokens=1, kind="stall")]
    client = Client(ScriptedBackend(DOCUMENT, faults=stalls), observers=[Metrics(registry)])
    async with client.stream("x") as stream:
        started = 0
        async for event in stream:
            started += isinstance(event, ThreadStarted)
            if started == 3:
                break
        during = Samples.of(registry)
        assert during.value("pasta_answers_in_flight") == 1
        assert during.value("pasta_threads_decoding") >= 2
    samples = Samples.of(registry)
    check_idle(samples)
    assert samples.value("pasta_answers_total", finish_reason="abort") == 1
    assert samples.value("pasta_requests_total", finish_reason="abort") >= 2
    assert samples.value("pasta_answer_errors_total") == 0
    assert stream.partial
    check_against(samples, [stream.partial])


async def test_threads_that_wait_are_seen() -> None:
    registry = CollectorRegistry()
    stalls = [Fault(thread=0, after_tokens=1, kind="stall")]
    backend = ScriptedBackend(DOCUMENT, faults=stalls)
    client = Client(backend, limits=Limits(client_threads=1), observers=[Metrics(registry)])
    first = asyncio.create_task(client.generate("x"))
    await anyio.wait_all_tasks_blocked()
    second = asyncio.create_task(client.generate("y", parallel="always"))
    await anyio.wait_all_tasks_blocked()
    assert Samples.of(registry).value("pasta_threads_waiting") == 1
    assert Samples.of(registry).value("pasta_threads_decoding") == 1
    first.cancel()
    generation = await second
    await asyncio.wait([first])
    samples = Samples.of(registry)
    check_idle(samples)
    assert samples.value("pasta_answers_total", finish_reason=generation.finish_reason) == 1
    assert samples.value("pasta_thread_wait_seconds_count") == samples.value("pasta_threads_total") + 1


async def test_one_object_serves_several_clients() -> None:
    metrics = Metrics(registry := CollectorRegistry())
    for name in ("a", "b"):
        await Client(ScriptedBackend(DOCUMENT, name=name), observers=[metrics]).generate("x")
    samples = Samples.of(registry)
    assert [samples.value("pasta_answers_total", model_name=name) for name in ("a", "b")] == [1, 1]
