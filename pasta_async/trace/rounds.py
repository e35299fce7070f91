"""When the chunks of an answer were joined, told from its document and its timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta_async.lang.document import Promise, Sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pasta_async.results import Generation

__all__ = ["Round", "rounds"]


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
