"""`perfetto_trace` keeps the rules of the trace-event format, whatever became of the answer."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_async import Client, Generation, Limits, ThreadFailedError
from pasta_async.testing import Fault, Script, ScriptedBackend, WordTokenizer
from pasta_async.trace import perfetto_trace
from tests.interpreter.support import RICH, promise

LATENCIES = st.dictionaries(st.integers(0, 5), st.sampled_from([0.1, 1.0, 3.0, 20.0]))


async def answer(backend: ScriptedBackend, **options: Any) -> Generation:
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=None)) as client:
        return await client.generate("Why?", **options)


def check(trace: dict[str, Any]) -> None:
    """Fail where a trace breaks a rule of the format."""
    trace = json.loads(json.dumps(trace))
    events = trace["traceEvents"]
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times) and times[0] >= 0
    assert all(("ts" in event) != (event["ph"] == "M") for event in events)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named >= {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    check_pairs(event for event in events if event["ph"] in ("b", "e"))
    slices = check_slices(event for event in events if event["ph"] == "X")
    check_flows((event for event in events if event["ph"] in ("s", "t", "f")), slices)


def check_pairs(events: Iterable[dict[str, Any]]) -> None:
    """What begins ends, and what has one id nests."""
    open_: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for event in events:
        stack = open_[event["pid"], event.get("cat", ""), event.get("id", "")]
        if event["ph"] == "b":
            stack.append(event["name"])
        else:
            assert stack.pop() == event["name"]
    assert open_ and not any(open_.values())


def check_slices(events: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Slices of one track lie behind or inside each other."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        track = slices[event["pid"], event["tid"]]
        start, end = event.get("ts", -1.0), event.get("ts", -1.0) + event.get("dur", -1.0)
        assert end >= start >= 0
        for before, after in track:
            assert start >= after - 0.001 or (before <= start and end <= after + 0.001)
        track.append((start, end))
    return slices


def check_flows(
    events: Iterable[dict[str, Any]], slices: dict[tuple[int, int], list[tuple[float, float]]]
) -> None:
    """Start, step and end, in time, each inside a slice of its track; ids are hexadecimal numbers."""
    flows: dict[int, str] = defaultdict(str)
    for event in events:
        flows[int(event.get("id", ""), 16)] += event["ph"]
        time = event.get("ts", -1.0)
        track = slices[event["pid"], event["tid"]]
        assert any(start <= time <= end + 0.001 for start, end in track)
        assert (event.get("bp") == "e") == (event["ph"] == "f")
    assert set(flows.values()) <= {"stf"}


def flows(trace: dict[str, Any]) -> int:
    return sum(event["ph"] == "f" for event in trace["traceEvents"])


@given(latencies=LATENCIES, threads=st.sampled_from([1, 2, 16]))
@settings(max_examples=25)
async def test_the_rules_hold_whatever_the_timing(latencies: dict[int, float], threads: int) -> None:
    backend = ScriptedBackend(RICH, latency=1.0, prefill=2.0, thread_latency=latencies)
    generation = await answer(backend, limits=Limits(max_threads=threads))
    trace = perfetto_trace(generation)
    check(trace)
    assert flows(trace) == len(generation.threads) - 1


async def test_times_are_microseconds_and_requests_tell_their_tokens() -> None:
    written = f"One two. {promise('tea', 'Tea is old.', 10)}<sync/> Enough."
    trace = perfetto_trace(await answer(ScriptedBackend(written, latency=1.0)))
    slices = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "X"}
    assert slices["tea"].get("dur") == pytest.approx(5e6)
    assert slices["tea"].get("args", {})["completion_tokens"] == 5
    ends = [event.get("ts") for event in trace["traceEvents"] if event["ph"] == "f"]
    resumed = [
        event.get("ts") for event in trace["traceEvents"] if event["name"] == "main" and event["ph"] == "X"
    ]
    assert ends == resumed[1:]
    assert "wait for the threads" in slices


async def test_the_baseline_is_a_second_process() -> None:
    backend = ScriptedBackend(RICH, latency=1.0)
    generation, baseline = await answer(backend), await answer(backend, baseline=True)
    trace = perfetto_trace(generation, baseline)
    check(trace)
    assert {event["pid"] for event in trace["traceEvents"]} == {1, 2}


@pytest.mark.parametrize("thread", [0, 1, 2, 3, 5])  # the fourth chunk is empty
async def test_an_answer_that_failed_has_a_trace_of_what_there_was(thread: int) -> None:
    backend = ScriptedBackend(RICH, latency=1.0, faults=[Fault(thread, 3)])
    with pytest.raises(ThreadFailedError) as caught:
        await answer(backend)
    assert caught.value.partial is not None
    check(perfetto_trace(caught.value.partial))


async def test_requests_that_were_sent_again_have_a_slice_each() -> None:
    fault = Fault(1, 0, "fail", retryable=True)
    generation = await answer(ScriptedBackend(RICH, latency=1.0, prefill=1.0, faults=[fault]))
    trace = perfetto_trace(generation)
    check(trace)
    sent = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == 2]
    assert [event.get("args", {}).get("completion_tokens") for event in sent[:2]] == [
        0,
        generation.threads[1].tokens,
    ]


async def test_a_chunk_that_main_wrote_itself_is_joined_by_no_flow() -> None:
    script = Script([f"A. {promise('tea')}   <async>Inline.</async> B."], {1: "Thread text.</async>"})
    backend = ScriptedBackend(script, tokenizer=WordTokenizer(tags=False), latency=1.0)
    trace = perfetto_trace(await answer(backend))
    check(trace)
    assert flows(trace) == 0


async def test_the_rules_above_refuse_broken_traces() -> None:
    trace = perfetto_trace(await answer(ScriptedBackend(RICH, latency=1.0)))
    check(trace)
    for ph in ("e", "s", "f", "b"):
        broken = copy.deepcopy(trace)
        events = broken["traceEvents"]
        events.remove(next(event for event in events if event["ph"] == ph))
        with pytest.raises((AssertionError, IndexError)):
            check(broken)
    late = copy.deepcopy(trace)
    late["traceEvents"].append(late["traceEvents"].pop(len(late["traceEvents"]) // 2))
    with pytest.raises((AssertionError, IndexError)):
        check(late)


async def test_an_answer_without_promises_has_one_track() -> None:
    trace = perfetto_trace(await answer(ScriptedBackend("One. Two.", latency=1.0)))
    check(trace)
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"] == [
        "main",
        "to the first token",
    ]
