"""An answer's timeline in Chrome's trace-event format, which Perfetto and `chrome://tracing` open.

Times in it are microseconds since the answer began. Process 1 is the answer, 2 its baseline. The number of a
track is the thread's and one: Perfetto keeps 0 for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pasta_async.lang.document import Promise, Sync
from pasta_async.results import Generation, Span, ThreadRecord

Json = dict[str, Any]


def perfetto_trace(answer: Generation, baseline: Generation | None = None) -> dict[str, Any]:
    """The trace of a finished answer, and of its baseline as a second process; for `json.dump`.

    Each thread is a track with a slice for each request; each promise is an async slice from its tag to the
    end of its chunk; flows lead from the promise to its thread to where main goes on with the chunk.
    """
    events = list(_process(answer, 1, "answer"))
    if baseline:
        events += _process(baseline, 2, "baseline")
    events.sort(key=lambda event: event.get("ts", -1.0))
    totals = {"critical_path": answer.critical_path, "completion_tokens": answer.usage.completion_tokens}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": totals}


def _process(answer: Generation, pid: int, name: str) -> Iterator[Json]:
    """Events of one answer. Those of one moment stay in this order: what encloses comes first, flows last."""
    yield _metadata("process_name", pid, 0, name=name)
    yield from _async("answer", pid, 0, 0.0, answer.elapsed, finish_reason=answer.finish_reason)
    for record in answer.threads:
        yield from _thread(answer, record, pid)
    yield from _joins(answer, pid)


def _thread(answer: Generation, record: ThreadRecord, pid: int) -> Iterator[Json]:
    tid, first = record.thread + 1, record.first_token
    name = f"{record.thread} {record.topic}" if record.thread else "main"
    yield _metadata("thread_name", pid, tid, name=name)
    yield _metadata("thread_sort_index", pid, tid, sort_index=tid)
    for span, request in zip(_spans(answer, record.thread), record.requests, strict=False):
        yield _slice(record.topic or "main", pid, tid, span.start, span.end, **request.model_dump())
        if first is not None and span.start <= first <= span.end:
            yield _slice("to the first token", pid, tid, span.start, first)
    if record.thread:
        yield from _promise(answer, record, pid)


def _promise(answer: Generation, record: ThreadRecord, pid: int) -> Iterator[Json]:
    """A promise on its own track, with its time in the queue inside; an instant where main wrote it."""
    ended = answer.elapsed if record.ended is None else record.ended
    started = ended if record.started is None else record.started
    figures = record.model_dump(include={"estimate", "tokens", "finish_reason"})
    begin, end = _async(record.topic, pid, record.thread, record.opened, ended, **figures)
    queued = _async("queued", pid, record.thread, record.opened, started)
    yield from (begin, *queued, end)
    at = _microseconds(record.opened)
    yield {"name": f"promise {record.topic}", "ph": "i", "s": "t", "pid": pid, "tid": 1, "ts": at}


def _joins(answer: Generation, pid: int) -> Iterator[Json]:
    for joined in rounds(answer):
        if joined.waiting < joined.kept:
            yield _slice("wait for the threads", pid, 1, joined.waiting, joined.kept)
        if not joined.goes_on:
            yield _slice("join", pid, 1, joined.kept, joined.joined)
        end = joined.joined if joined.goes_on else joined.kept
        for number in joined.threads:
            if spans := _spans(answer, number):
                yield from _flow(answer.threads[number], pid, spans[0].start, end)


def _flow(record: ThreadRecord, pid: int, start: float, end: float) -> Iterator[Json]:
    """From the promise to its thread to the join; each event lies in a slice, which it binds to."""
    common = {"name": "promise", "cat": "promise", "id": _id(pid, record.thread), "pid": pid}
    yield {**common, "ph": "s", "tid": 1, "ts": _microseconds(record.opened)}
    yield {**common, "ph": "t", "tid": record.thread + 1, "ts": _microseconds(start)}
    yield {**common, "ph": "f", "bp": "e", "tid": 1, "ts": _microseconds(end)}


def _metadata(name: str, pid: int, tid: int, /, **args: Any) -> Json:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _async(name: str, pid: int, number: int, start: float, end: float, /, **args: Any) -> tuple[Json, Json]:
    """Begin and end of something that is no slice of a thread; what has one number nests."""
    common = {"name": name, "cat": "pasta", "id": _id(pid, number), "pid": pid, "tid": 1}
    begin = {**common, "ph": "b", "ts": _microseconds(start), "args": args}
    return begin, {**common, "ph": "e", "ts": _microseconds(end)}


def _slice(name: str, pid: int, tid: int, start: float, end: float, /, **args: Any) -> Json:
    at, until = _microseconds(start), _microseconds(end)
    where = {"ph": "X", "pid": pid, "tid": tid, "ts": at, "dur": round(until - at, 3)}
    return {"name": name, "cat": "pasta", **where, "args": args}


def _spans(answer: Generation, thread: int) -> list[Span]:
    return sorted((span for span in answer.timeline if span.thread == thread), key=lambda span: span.start)


def _id(pid: int, number: int) -> str:
    """Perfetto reads the ids of flows as hexadecimal numbers."""
    return f"{(pid << 16) + number:#x}"


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


@dataclass(frozen=True, slots=True)
class Round:
    """The threads between two syncs. Times are seconds since the answer began."""

    threads: tuple[int, ...]
    """Those whose chunks were joined."""
    waiting: float
    """When main began to wait for them."""
    kept: float
    """When the last of them was done."""
    joined: float
    """When main went on, or the answer ended."""
    goes_on: bool
    """Whether main decoded behind it."""


def rounds(answer: Generation) -> Iterator[Round]:
    """The rounds of an answer that were joined, in order. A round that an error broke off is left out."""
    main = [span for span in answer.timeline if span.thread == 0]
    for numbers in _between_syncs(answer):
        records = [answer.threads[number] for number in numbers]
        if any(record.finish_reason in ("abort", "error") for record in records):
            return
        joined = [record for record in records if record.finish_reason != "superseded"]
        if not joined:
            continue
        kept = max(answer.elapsed if record.ended is None else record.ended for record in joined)
        starts = [span.start for span in main if span.start >= kept]
        ends = [span.end for span in main if span.end <= (starts[0] if starts else answer.elapsed)]
        waiting = min(max(ends, default=kept), kept)
        threads = tuple(record.thread for record in joined)
        yield Round(threads, waiting, kept, starts[0] if starts else answer.elapsed, bool(starts))


def _between_syncs(answer: Generation) -> Iterator[list[int]]:
    number, numbers = 0, list[int]()
    for node in answer.document.nodes:
        if isinstance(node, Promise) and number + 1 < len(answer.threads):
            number += 1
            numbers.append(number)
        elif isinstance(node, Sync):
            yield numbers
            numbers = []
    yield numbers
