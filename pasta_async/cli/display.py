"""Where an answer appears: as text, as JSON at the end, or live with its threads; and its summary."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pasta_async.cli.command import require_stdout
from pasta_async.events import Event, SyncJoined, SyncWaiting, TextDelta
from pasta_async.lang import STYLE_CODES
from pasta_async.results import Generation, Span, ThreadRecord
from pasta_async.streaming import AnswerStream

_INTERVAL = 0.1
"""Seconds between two pictures. Drawing takes time from decoding, so not more often."""

_MAIN_LINES = 6
_PROGRESS = 12
_LABEL = 24
_BAR = 48


class Display:
    """Shows the answer's text in document order, as it is decoded; with a baseline, the numbers behind it.

    Raises:
        SystemExit: There is no standard output.
    """

    def __init__(self) -> None:
        require_stdout()
        self._streams: list[AnswerStream] = []  # the answer's, and then perhaps the baseline's
        self._end = "\n"

    def begin(self, stream: AnswerStream) -> None:
        """A stream begins: the answer's, and then perhaps the baseline's."""
        self._end_line()
        self._streams.append(stream)

    def show(self, event: Event) -> None:
        """Something happened in the stream that began last. The baseline is not shown."""
        if isinstance(event, TextDelta) and event.delta and len(self._streams) == 1:
            _write(event.delta)
            sys.stdout.flush()
            self._end = event.delta[-1]

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """All is decoded."""
        self._end_line()
        if baseline:
            sys.stdout.write("\n" + "\n".join(summary(answer, baseline)) + "\n")

    def broken(self) -> None:
        """It ended early: leave what there is of the answer."""
        self._end_line()

    def _partial(self) -> Generation | None:
        """What there is of the answer."""
        return self._streams[0].partial if self._streams else None

    def _end_line(self) -> None:
        sys.stdout.write("" if self._end == "\n" else "\n")
        sys.stdout.flush()
        self._end = "\n"


class JsonDisplay(Display):
    """One JSON object at the end: the generation, or with a baseline both and the speed-ups."""

    def show(self, event: Event) -> None:
        """Nothing is shown before the end."""

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
        _print_json(found)

    def broken(self) -> None:
        """Print what there is, if the answer had begun; its `finish_reason` says that it is not whole."""
        if partial := self._partial():
            _print_json(partial.model_dump(mode="json"))


class LiveDisplay(Display):
    """Draws the answer so far several times a second; at the end the text, the timeline and the numbers.

    It draws on `console`, or on standard output. Without a terminal, only the end is shown.
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
        width = min(max(self._console.width - 44, 16), 64)
        self._end_with(answer.text, "", *summary(answer, baseline, width=width))

    def broken(self) -> None:
        """The text so far."""
        partial = self._partial()
        lines = [partial.text] if partial and partial.text else []
        self._end_with(*lines)

    def _draw(self) -> None:
        self._next = None
        if partial := self._streams[-1].partial:
            title = "main" if len(self._streams) == 1 else "baseline"
            picture = view(partial, title=title, waiting=self._waiting, width=self._console.width)
            self._live.update(picture, refresh=True)

    def _end_with(self, *lines: str) -> None:
        if self._next:
            self._next.cancel()
        self._live.stop()
        for line in lines:
            self._console.print(Text(_printable(line)), soft_wrap=True)


def view(answer: Generation, *, width: int, title: str = "main", waiting: bool = False) -> RenderableType:
    """A picture of an answer so far: the main thread on top, below it a row for each promise.

    It fits a screen of `width` characters. The main thread has a `title` and may be `waiting` for the others.
    """
    main, *threads = answer.threads
    heading = f"{title} · {main.tokens} tokens" + (" · waits for its threads" if waiting else "")
    text = Text(_tail(main.text, (width - 4) * _MAIN_LINES), overflow="fold")
    top = Panel(text, title=heading, title_align="left", border_style="yellow" if waiting else "green")
    table = Table.grid(padding=(0, 1), expand=True)
    for column in (_LABEL, _PROGRESS, None, None):
        table.add_column(no_wrap=True, max_width=column)
    for thread in threads:
        style = "dim" if thread.started is None else "green" if thread.ended is not None else "cyan"
        whole = thread.estimate or 100
        done = whole if thread.ended is not None else min(thread.tokens, 0.99 * whole)
        progress = ProgressBar(whole, done, width=_PROGRESS, complete_style=style, finished_style=style)
        table.add_row(
            Text(_label(thread), style=style),
            progress,
            f"{thread.tokens}/{thread.estimate or '?'}",
            Text(_tail(" ".join(thread.text.split()), max(width - _LABEL - _PROGRESS - 12, 16))),
        )
    return Group(top, table) if threads else top


def _tail(text: str, length: int) -> str:
    return _printable(text if len(text) <= length else "…" + text[1 - length :])


def summary(answer: Generation, baseline: Generation | None = None, *, width: int = _BAR) -> list[str]:
    """The timeline and below it the numbers, as lines of text.

    The timeline has a line for each thread, and one for the baseline, on one scale of time. The longest bar
    has `width` characters.
    """
    longest = max(answer.elapsed, baseline.elapsed if baseline else 0.0)
    rows = [
        (_label(thread), [span for span in answer.timeline if span.thread == thread.thread], thread.tokens)
        for thread in answer.threads
    ]
    if baseline:
        rows.append(("baseline", [*baseline.timeline], baseline.usage.completion_tokens))
    margin = max(len(name) for name, _, _ in rows)
    bars = [
        f"{name:{margin}}  {bar(spans, longest, width)}  {tokens:>5} tokens" for name, spans, tokens in rows
    ]
    scale = f"{'':{margin}}  0{f'{longest:.2f} s':>{width - 1}}"
    return [*bars, scale, "", *_numbers(answer, baseline)]


def _label(thread: ThreadRecord) -> str:
    """A thread's name on screen."""
    topic = _printable(" ".join(thread.topic.split()))
    name = f"{thread.thread} {topic}".rstrip() if thread.thread else "main"
    return name if len(name) <= _LABEL else name[: _LABEL - 1] + "…"


def bar(spans: Iterable[Span], longest: float, width: int) -> str:
    """When a thread decoded, drawn over `longest` seconds in `width` characters."""
    cells = [" "] * width
    for span in spans:
        first = min(int(span.start / longest * width), width - 1) if longest else 0
        last = int(span.end / longest * width) if longest else width
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
        lines.append(f"baseline: {baseline.usage.completion_tokens} tokens, {baseline.elapsed:.2f} s")
        lines.append(
            f"speed-up: {_measured_speedup(answer, baseline):.2f} measured, "
            f"{answer.theoretical_speedup(baseline):.2f} in theory (tokens of the baseline / critical path)"
        )
    if found := {diagnostic.code for diagnostic in answer.diagnostics} - STYLE_CODES:
        lines.append(f"not well-formed: {', '.join(sorted(found))}")
    return lines


def _measured_speedup(answer: Generation, baseline: Generation) -> float:
    return baseline.elapsed / answer.elapsed if answer.elapsed else 1.0


def _print_json(value: dict[str, Any]) -> None:
    """Nothing is lost where standard output has another encoding than Unicode's."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    _write(json.dumps(value, ensure_ascii=not unicode, indent=2) + "\n")


def _write(text: str) -> None:
    """Print text of an answer: to a terminal as it may be shown, else as it is."""
    sys.stdout.write(_printable(text) if sys.stdout.isatty() else text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but line breaks and tabs: a terminal obeys them."""


def _printable(text: str) -> str:
    return _CONTROL.sub("\ufffd", text)
