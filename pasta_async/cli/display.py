"""Where an answer appears: as text, as JSON at the end, or live with its threads; and its summary."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pasta_async.events import SyncJoined, SyncWaiting, TextDelta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from pasta_async.events import Event
    from pasta_async.results import Generation, Span, ThreadRecord
    from pasta_async.streaming import AnswerStream

__all__ = ["Display", "JsonDisplay", "LiveDisplay", "TextDisplay", "bar", "summary", "timeline", "view"]

_INTERVAL = 0.1
"""Seconds between two pictures. Drawing takes time from decoding, so not more often."""

_MAIN_LINES = 6
_PROGRESS = 12
_LABEL = 24
_BAR = 48


class Display:
    """What `pasta-async generate` shows an answer on. Of itself it shows nothing."""

    def __init__(self) -> None:
        self.answer: AnswerStream | None = None
        """The answer's stream."""
        self.current: AnswerStream | None = None
        """The one that began last: the answer's, or then the baseline's."""

    def begin(self, stream: AnswerStream) -> None:
        """A stream begins: the answer's, and then perhaps the baseline's."""
        self.answer, self.current = self.answer or stream, stream

    def show(self, event: Event) -> None:
        """Something happened in the stream that began last."""

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """All is decoded."""

    def broken(self) -> None:
        """It ended early: leave what there is of the answer."""


class TextDisplay(Display):
    """The answer's text in document order, as it is decoded; with a baseline, the numbers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._end = "\n"

    def begin(self, stream: AnswerStream) -> None:
        """The baseline is not shown."""
        super().begin(stream)
        self.broken()

    def show(self, event: Event) -> None:
        """Print what is new at once."""
        if isinstance(event, TextDelta) and event.delta and self.current is self.answer:
            sys.stdout.write(event.delta)
            sys.stdout.flush()
            self._end = event.delta[-1]

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """End the line; with a baseline, the numbers."""
        self.broken()
        if baseline:
            sys.stdout.write("\n" + "\n".join(summary(answer, baseline)) + "\n")
        _print_notes(answer)

    def broken(self) -> None:
        """The text is there already: end the line."""
        if self._end != "\n":
            sys.stdout.write("\n")
            self._end = "\n"
        sys.stdout.flush()


class JsonDisplay(Display):
    """One JSON object at the end: the generation, or with a baseline both and the speed-ups."""

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """Print the object."""
        found = answer.model_dump(mode="json")
        if baseline is not None:
            found = {
                "answer": found,
                "baseline": baseline.model_dump(mode="json"),
                "theoretical_speedup": answer.theoretical_speedup(baseline),
                "measured_speedup": _measured_speedup(answer, baseline),
            }
        _print(found)

    def broken(self) -> None:
        """Print what there is, if the answer had begun; its `finish_reason` says that it is not whole."""
        if self.answer and self.answer.partial:
            _print(self.answer.partial.model_dump(mode="json"))


class LiveDisplay(Display):
    """Draws the answer so far several times a second; at the end the text, the timeline and the numbers.

    Args:
        console: Where to draw; None: standard output. Without a terminal, only the end is shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._waiting = False
        self._next: asyncio.TimerHandle | None = None

    def begin(self, stream: AnswerStream) -> None:
        """Start drawing."""
        super().begin(stream)
        self._waiting = False
        self._live.start()

    def show(self, event: Event) -> None:
        """See to it that it is drawn soon: the next picture comes by itself, also if no event follows."""
        if isinstance(event, SyncWaiting | SyncJoined):
            self._waiting = isinstance(event, SyncWaiting)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(_INTERVAL, self._draw)

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """The answer, the timeline and the numbers."""
        self._stop()
        self._print(answer.text)
        self._print("")
        width = min(max(self._console.width - 44, 16), 64)
        for line in summary(answer, baseline, width=width):
            self._print(line)
        _print_notes(answer)

    def broken(self) -> None:
        """The text so far."""
        self._stop()
        if self.answer and (partial := self.answer.partial) and partial.text:
            self._print(partial.text)

    def _draw(self) -> None:
        self._next = None
        if self.current and (partial := self.current.partial):
            title = "main" if self.current is self.answer else "baseline"
            picture = view(partial, title=title, waiting=self._waiting, width=self._console.width)
            self._live.update(picture, refresh=True)

    def _stop(self) -> None:
        if self._next:
            self._next.cancel()
            self._next = None
        self._live.stop()

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def view(
    answer: Generation, *, title: str = "main", waiting: bool = False, width: int = 100
) -> RenderableType:
    """A picture of an answer: the main thread on top, below it a row for each promise.

    Args:
        answer: The answer so far.
        title: Of the main thread.
        waiting: Whether main waits for its threads.
        width: Of the screen, in characters.
    """
    main, *threads = answer.threads
    heading = f"{title} · {main.tokens} tokens" + (" · waits for its threads" if waiting else "")
    text = Text(_tail(main.text, (width - 4) * _MAIN_LINES), overflow="fold")
    top = Panel(text, title=heading, title_align="left", border_style="yellow" if waiting else "green")
    return Group(top, _rows(threads, width)) if threads else top


def _rows(threads: list[ThreadRecord], width: int) -> Table:
    names = [_label(thread) for thread in threads]
    counts = [f"{thread.tokens}/{thread.estimate or '?'}" for thread in threads]
    left = width - max(map(len, names)) - _PROGRESS - max(map(len, counts)) - 3  # a gap behind each column
    table = Table.grid(padding=(0, 1), expand=True)
    for justify in ("left", "left", "right", "left"):
        table.add_column(no_wrap=True, justify=justify)
    for thread, name, count in zip(threads, names, counts, strict=True):
        style = "dim" if thread.started is None else "green" if thread.ended is not None else "cyan"
        text = _tail(" ".join(thread.text.split()), max(left, 16))
        table.add_row(Text(name, style=style), Text(_progress(thread), style=style), Text(count), Text(text))
    return table


def _progress(thread: ThreadRecord) -> str:
    """How far the thread is, by its estimate; full when it has ended."""
    share = 1.0 if thread.ended is not None else min(thread.tokens / (thread.estimate or 100), 0.99)
    full = int(share * _PROGRESS)
    return "━" * full + "╌" * (_PROGRESS - full)


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else "…" + text[1 - length :]


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
            _label(thread),
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


def _label(thread: ThreadRecord) -> str:
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
        measured = _measured_speedup(answer, baseline)
        lines.append(f"baseline: {baseline.usage.completion_tokens} tokens, {baseline.elapsed:.2f} s")
        lines.append(
            f"speed-up: {measured:.2f} measured, {answer.theoretical_speedup(baseline):.2f} in theory "
            "(tokens of the baseline / critical path)"
        )
    if answer.diagnostics:
        found = ", ".join(sorted({str(diagnostic.code) for diagnostic in answer.diagnostics}))
        lines.append(f"not well-formed: {found}")
    return lines


def _measured_speedup(answer: Generation, baseline: Generation) -> float:
    return baseline.elapsed / answer.elapsed if answer.elapsed else 1.0


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def _print_notes(answer: Generation) -> None:
    """What the backend could not honour, on stderr."""
    for note in answer.notes:
        sys.stderr.write(f"pasta-async: note: {note}\n")
