"""Metrics are what the answers' own records say, read back from the text that Prometheus reads."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from prometheus_client import CollectorRegistry

from pasta_async import (
    BackendTransportError,
    Client,
    Generation,
    Limits,
    ThreadFailedError,
    ThreadStarted,
)
from pasta_async.telemetry.metrics import Metrics
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.metric_samples import DOCUMENT, Samples


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def client_of(registry: CollectorRegistry, *faults: Fault, **limits: int) -> Client:
    backend = ScriptedBackend(DOCUMENT, faults=faults)
    return Client(backend, limits=Limits.of(limits), observers=[Metrics(registry)])


def scrape(registry: CollectorRegistry, *generations: Generation) -> Samples:
    """A scrape when nothing is under way any more; it must say what the records of the answers say."""
    samples = Samples.of(registry)
    for name in ("answers_in_flight", "threads_decoding", "threads_waiting"):
        assert samples.value(f"pasta_{name}") == 0
    threads = [thread for generation in generations for thread in generation.threads]
    usages = [generation.usage for generation in generations]
    for name, expected in {
        "threads": len(threads),
        "requests": sum(usage.requests for usage in usages),
        "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "prefilled_tokens": sum(usage.prefilled_tokens for usage in usages),
        "generation_tokens": sum(usage.completion_tokens for usage in usages),
        "critical_path_tokens": sum(generation.critical_path for generation in generations),
        "text_tokens": sum(generation.text_tokens for generation in generations),
        "diagnostics": sum(len(generation.diagnostics) for generation in generations),
    }.items():
        assert samples.value(f"pasta_{name}_total") == expected, name
    main = sum(generation.threads[0].tokens for generation in generations)
    assert samples.value("pasta_generation_tokens_total", kind="main") == main
    return samples


async def test_answers_in_parallel_and_in_sequence(registry: CollectorRegistry) -> None:
    client = client_of(registry)
    generations = [await client.generate("x", baseline=baseline) for baseline in (False, False, True)]
    samples = scrape(registry, *generations)
    assert samples.value("pasta_answers_total", model_name="scripted", finish_reason="stop") == 3
    assert samples.value("pasta_answer_widths_total", width="full") == 2
    assert samples.value("pasta_answer_widths_total", width="plain") == 1
    assert samples.value("pasta_threads_total", kind="chunk", finish_reason="stop") == 4
    for name, expected in {
        "answer_duration_seconds": sum(generation.elapsed for generation in generations),
        "time_to_first_token_seconds": sum(answer.threads[0].first_token or 0 for answer in generations),
    }.items():
        assert samples.value(f"pasta_{name}_count") == 3
        assert samples.value(f"pasta_{name}_sum") == pytest.approx(expected)


async def test_failures_are_counted_by_their_class_and_retries_as_requests(
    registry: CollectorRegistry,
) -> None:
    passing = BackendTransportError("it broke off")
    faults = [Fault(thread=1, after_tokens=0, error=passing), Fault(thread=2, after_tokens=1, times=9)]
    client = client_of(registry, *faults)
    with pytest.raises(ThreadFailedError) as failure:
        await client.generate("x")
    assert failure.value.partial
    samples = scrape(registry, failure.value.partial)
    assert samples.value("pasta_answers_total", finish_reason="error") == 1
    assert samples.value("pasta_answer_errors_total", error_type="BackendError") == 1
    for error_type in ("BackendTransportError", "BackendError"):
        assert samples.value("pasta_request_errors_total", error_type=error_type) == 1
    assert samples.value("pasta_requests_total", finish_reason="error") == 2


async def test_a_cancelled_answer_aborts_its_requests(registry: CollectorRegistry) -> None:
    stalls = [Fault(thread=thread, after_tokens=1, kind="stall") for thread in (1, 2)]
    client = client_of(registry, *stalls)
    async with client.stream("x") as stream:
        async for event in stream:
            if isinstance(event, ThreadStarted) and event.thread == 2:
                break
        during = Samples.of(registry)
        assert during.value("pasta_answers_in_flight") == 1
        assert during.value("pasta_threads_decoding") >= 2
    assert stream.partial
    samples = scrape(registry, stream.partial)
    assert samples.value("pasta_answers_total", finish_reason="abort") == 1
    assert samples.value("pasta_requests_total", finish_reason="abort") >= 2
    assert samples.value("pasta_answer_errors_total") == 0


async def test_threads_that_wait_are_seen(registry: CollectorRegistry) -> None:
    stall = Fault(thread=0, after_tokens=1, kind="stall")
    client = client_of(registry, stall, client_threads=1)
    first = asyncio.create_task(client.generate("x"))
    await anyio.wait_all_tasks_blocked()
    second = asyncio.create_task(client.generate("y", parallel="always"))
    await anyio.wait_all_tasks_blocked()
    samples = Samples.of(registry)
    assert samples.value("pasta_threads_waiting") == samples.value("pasta_threads_decoding") == 1
    first.cancel()
    await asyncio.wait([first, second])
    waits = Samples.of(registry).value("pasta_thread_wait_seconds_count")
    assert waits == 1 + len(second.result().threads) + 1  # main waits anew behind its sync
