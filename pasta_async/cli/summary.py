"""What an answer cost: a timeline with a bar for each thread, and the speed-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pasta_async.results import Generation, Span, ThreadRecord

__all__ = ["bar", "label", "summary", "timeline"]

_LABEL = 24
_BAR = 48


def summary(answer: Generation, baseline: Generation | None = None, *, width: int = _BAR) -> list[str]:
    """The timeline and below it the numbers, as lines of text."""
    return [*timeline(answer, baseline, width=width), "", *_numbers(answer, baseline)]


def timeline(answer: Generation, baseline: Generation | None = None, *, width: int = _BAR) -> list[str]:
    """A line for each thread, and one for the baseline, on one scale of time.

    Args:
        answer: Whose threads are drawn.
        baseline: Drawn below, as one bar.
        width: Of the longest bar, in characters.
    """
    longest = max(answer.elapsed, baseline.elapsed if baseline else 0.0)
    rows = [
        (
            label(thread),
            bar((span for span in answer.timeline if span.thread == thread.thread), longest, width),
            thread.tokens,
        )
        for thread in answer.threads
    ]
    if baseline:
        rows.append(("baseline", bar(baseline.timeline, longest, width), baseline.usage.completion_tokens))
    margin = max(len(name) for name, _, _ in rows)
    scale = f"{'':{margin}}  0{f'{longest:.2f} s':>{width - 1}}"
    return [f"{name:{margin}}  {drawn}  {tokens:>5} tokens" for name, drawn, tokens in rows] + [scale]


def label(thread: ThreadRecord) -> str:
    """A thread's name on screen."""
    if not thread.thread:
        return "main"
    name = f"{thread.thread} {' '.join(thread.topic.split())}".rstrip()
    return name if len(name) <= _LABEL else name[: _LABEL - 1] + "…"


def bar(spans: Iterable[Span], longest: float, width: int) -> str:
    """When a thread decoded, drawn over `longest` seconds in `width` characters."""
    cells = [" "] * width
    for span in spans:
        first = int(span.start / longest * width) if longest else 0
        last = int(span.end / longest * width) if longest else width
        first = min(first, width - 1)
        last = min(max(last, first + 1), width)
        cells[first:last] = "█" * (last - first)
    return "".join(cells)


def _numbers(answer: Generation, baseline: Generation | None) -> list[str]:
    lines = [
        f"{answer.usage.completion_tokens} tokens in all, {answer.critical_path} on the critical path, "
        f"{answer.elapsed:.2f} s",
    ]
    if baseline is None:
        lines.append(
            f"speed-up by counting: {answer.text_speedup:.2f} (tokens of the text / critical path; "
            "--compare decodes the baseline too)"
        )
    else:
        measured = baseline.elapsed / answer.elapsed if answer.elapsed else 1.0
        lines.append(f"baseline: {baseline.usage.completion_tokens} tokens, {baseline.elapsed:.2f} s")
        lines.append(
            f"speed-up: {measured:.2f} measured, {answer.theoretical_speedup(baseline):.2f} in theory "
            "(tokens of the baseline / critical path)"
        )
    if answer.diagnostics:
        found = ", ".join(sorted({str(diagnostic.code) for diagnostic in answer.diagnostics}))
        lines.append(f"not well-formed: {found}")
    return lines
