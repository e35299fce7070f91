"""An answer's timeline in Chrome's trace-event format, which Perfetto and `chrome://tracing` open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from pasta_async.trace.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pasta_async.results import Generation, RequestRecord, Span, ThreadRecord

__all__ = ["PerfettoTrace", "TraceEvent", "perfetto_trace"]


class TraceEvent(TypedDict, total=False):
    """One event of the format. Times are microseconds since the answer began."""

    name: Required[str]
    ph: Required[Literal["M", "X", "i", "b", "e", "s", "t", "f"]]
    """Metadata, a slice, an instant; begin and end of something async; start, step and end of a flow."""
    pid: Required[int]
    """1 is the answer, 2 its baseline."""
    tid: Required[int]
    """The thread's number and one: Perfetto keeps 0 for itself."""
    ts: float
    dur: float
    cat: str
    id: str
    """What belongs together: a begin and its end, the events of a flow."""
    s: Literal["t"]
    bp: Literal["e"]
    """A flow ends at the slice around it."""
    args: dict[str, Any]


class _Paired(TypedDict):
    """What the events have in common that belong together."""

    name: str
    cat: str
    id: str
    pid: int


class PerfettoTrace(TypedDict):
    """A trace file, for `json.dump`."""

    traceEvents: list[TraceEvent]
    displayTimeUnit: Literal["ms"]
    otherData: dict[str, Any]


def perfetto_trace(answer: Generation, baseline: Generation | None = None) -> PerfettoTrace:
    """The trace of a finished answer, and of its baseline as a second process.

    Each thread is a track with a slice for each request; each promise is an async slice from its tag to the
    end of its chunk; flows lead from the promise to its thread to where main goes on with the chunk.
    """
    events = [*_process(answer, 1, "answer")]
    if baseline:
        events += _process(baseline, 2, "baseline")
    events.sort(key=lambda event: event.get("ts", -1.0))
    totals = {"critical_path": answer.critical_path, "completion_tokens": answer.usage.completion_tokens}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": totals}


def _process(answer: Generation, pid: int, name: str) -> Iterator[TraceEvent]:
    """Events of one answer. Those of one moment stay in this order: what encloses comes first, flows last."""
    yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
    yield from _async("answer", pid, 0, (0.0, answer.elapsed), finish_reason=answer.finish_reason)
    for record in answer.threads:
        yield from _thread(answer, record, pid)
    yield from _joins(answer, pid)


def _thread(answer: Generation, record: ThreadRecord, pid: int) -> Iterator[TraceEvent]:
    tid = record.thread + 1
    name = f"{record.thread} {record.topic}" if record.thread else "main"
    yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
    for span, request in zip(_spans(answer, record.thread), record.requests, strict=False):
        yield from _request(record, span, request, pid)
    if record.thread:
        yield from _promise(answer, record, pid)


def _request(record: ThreadRecord, span: Span, request: RequestRecord, pid: int) -> Iterator[TraceEvent]:
    tid, name = record.thread + 1, record.topic or "main"
    yield _slice(name, pid, tid, (span.start, span.end), **request.model_dump())
    if record.first_token is not None and span.start <= record.first_token <= span.end:
        yield _slice("to the first token", pid, tid, (span.start, record.first_token))


def _promise(answer: Generation, record: ThreadRecord, pid: int) -> Iterator[TraceEvent]:
    """A promise on its own track, with its time in the queue inside; an instant where main wrote it."""
    ended = answer.elapsed if record.ended is None else record.ended
    started = ended if record.started is None else record.started
    figures = {"estimate": record.estimate, "tokens": record.tokens, "finish_reason": record.finish_reason}
    begin, end = _async(record.topic, pid, record.thread, (record.opened, ended), **figures)
    yield begin
    yield from _async("queued", pid, record.thread, (record.opened, started))
    yield end
    at = _microseconds(record.opened)
    yield {"name": f"promise {record.topic}", "ph": "i", "s": "t", "pid": pid, "tid": 1, "ts": at}


def _joins(answer: Generation, pid: int) -> Iterator[TraceEvent]:
    for joined in rounds(answer):
        if joined.waiting < joined.kept:
            yield _slice("wait for the threads", pid, 1, (joined.waiting, joined.kept))
        if not joined.goes_on:
            yield _slice("join", pid, 1, (joined.kept, joined.joined))
        end = joined.joined if joined.goes_on else joined.kept
        for number in joined.threads:
            if spans := _spans(answer, number):
                yield from _flow(answer.threads[number], pid, start=spans[0].start, end=end)


def _flow(record: ThreadRecord, pid: int, *, start: float, end: float) -> Iterator[TraceEvent]:
    """From the promise to its thread to the join; each event lies in a slice, which it binds to."""
    common: _Paired = {"name": "promise", "cat": "promise", "id": _id(pid, record.thread), "pid": pid}
    yield {**common, "ph": "s", "tid": 1, "ts": _microseconds(record.opened)}
    yield {**common, "ph": "t", "tid": record.thread + 1, "ts": _microseconds(start)}
    yield {**common, "ph": "f", "bp": "e", "tid": 1, "ts": _microseconds(end)}


def _async(
    name: str, pid: int, number: int, times: tuple[float, float], **args: Any
) -> tuple[TraceEvent, TraceEvent]:
    """Begin and end of something that is no slice of a thread; what has one number nests."""
    common: _Paired = {"name": name, "cat": "pasta", "id": _id(pid, number), "pid": pid}
    start, end = map(_microseconds, times)
    return {**common, "ph": "b", "tid": 1, "ts": start, "args": args}, {
        **common,
        "ph": "e",
        "tid": 1,
        "ts": end,
    }


def _slice(name: str, pid: int, tid: int, times: tuple[float, float], **args: Any) -> TraceEvent:
    start, end = map(_microseconds, times)
    event: TraceEvent = {"name": name, "cat": "pasta", "ph": "X", "pid": pid, "tid": tid, "ts": start}
    return {**event, "dur": round(end - start, 3), "args": args}


def _spans(answer: Generation, thread: int) -> list[Span]:
    return sorted((span for span in answer.timeline if span.thread == thread), key=lambda span: span.start)


def _id(pid: int, number: int) -> str:
    """Perfetto reads the ids of flows as hexadecimal numbers."""
    return f"{(pid << 16) + number:#x}"


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
