"""Displays of an answer as text, or as JSON at the end; and its summary."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from pasta_async.lang import STYLE_CODES
from pasta_async.results import Generation, ThreadRecord
from pasta_async.streaming import AnswerStream

LABEL = 24
"""Characters of a thread's name on screen."""

_BAR = 48


class Display:
    """Shows the answer's text in document order, as it is decoded; with a baseline, the numbers behind it."""

    async def watch(self, stream: AnswerStream) -> None:
        """Show an answer while it is decoded. Cancelling it is safe."""
        async for delta in stream.text_deltas():
            # A pipe gets the text as it is; a terminal would execute control characters.
            sys.stdout.write(printable(delta) if sys.stdout.isatty() else delta)
            sys.stdout.flush()

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """Show the end: everything is decoded."""
        self.broken(answer)
        if baseline:
            sys.stdout.write("\n" + "\n".join(summary(answer, baseline)) + "\n")

    def broken(self, partial: Generation | None) -> None:
        """Show the answer so far, which ended early: its text is written already."""
        if partial and partial.text and not partial.text.endswith("\n"):
            sys.stdout.write("\n")


class JsonDisplay(Display):
    """One JSON object at the end: the generation, or with a baseline both and the speed-ups."""

    async def watch(self, stream: AnswerStream) -> None:
        """Show nothing before the end."""

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """Print the object."""
        result = answer.model_dump(mode="json")
        if baseline is not None:
            result = {
                "answer": result,
                "baseline": baseline.model_dump(mode="json"),
                "theoretical_speedup": answer.theoretical_speedup(baseline),
                "measured_speedup": answer.measured_speedup(baseline),
            }
        _print_json(result)

    def broken(self, partial: Generation | None) -> None:
        """Print the answer so far, if it had begun; its `finish_reason` says that it is not whole."""
        if partial:
            _print_json(partial.model_dump(mode="json"))


def summary(answer: Generation, baseline: Generation | None = None, *, width: int = _BAR) -> list[str]:
    """The timeline and below it the numbers, as lines of text.

    The timeline has a line for each thread, and one for the baseline, on the same scale. The longest bar has
    `width` characters.
    """
    longest = max(answer.elapsed, baseline.elapsed if baseline else 0.0)
    rows = [(label(thread), thread, answer.elapsed) for thread in answer.threads]
    if baseline:
        rows.append(("baseline", baseline.threads[0], baseline.elapsed))
    margin = max(len(name) for name, _, _ in rows)
    bars: list[str] = []
    for name, thread, elapsed in rows:
        times = [request.times(elapsed) for request in thread.requests]
        bars.append(f"{name:{margin}}  {bar(times, longest, width)}  {thread.tokens:>5} tokens")
    scale = f"{'':{margin}}  0{f'{longest:.2f} s':>{width - 1}}"
    return [*bars, scale, "", *_numbers(answer, baseline)]


def label(thread: ThreadRecord) -> str:
    """A thread's name on screen."""
    topic = printable(" ".join(thread.topic.split()))
    name = f"{thread.thread} {topic}".rstrip() if thread.thread else "main"
    return name if len(name) <= LABEL else name[: LABEL - 1] + "…"


def bar(times: Iterable[tuple[float, float]], longest: float, width: int) -> str:
    """The times from which and to which a thread decoded, drawn over `longest` seconds in `width` signs."""
    cells = [" "] * width
    for started, ended in times:
        first = min(int(started / longest * width), width - 1) if longest else 0
        last = int(ended / longest * width) if longest else width
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
        tokens = baseline.usage.completion_tokens
        lines.append(f"baseline: {tokens} tokens, {baseline.elapsed:.2f} s")
        lines.append(
            f"speed-up: {answer.measured_speedup(baseline):.2f} measured, "
            f"{answer.theoretical_speedup(baseline):.2f} in theory (tokens one after another / critical path)"
        )
        if answer.text_tokens + 1 < tokens:
            lines.append("(the answer is shorter than the baseline: compared with its own text at that pace)")
    if codes := {diagnostic.code for diagnostic in answer.diagnostics} - STYLE_CODES:
        lines.append(f"not well-formed: {', '.join(sorted(codes))}")
    return lines


def _print_json(value: dict[str, Any]) -> None:
    """Print JSON in ASCII: it suits any encoding, and has no control characters for a terminal."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters that a terminal executes: all but line breaks and tabs."""


def printable(text: str) -> str:
    """The text with U+FFFD in place of control characters that a terminal executes."""
    return _CONTROL.sub("\ufffd", text)
