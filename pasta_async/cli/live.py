"""The live view: the threads of an answer side by side while they decode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pasta_async.cli.display import tell_notes
from pasta_async.cli.summary import label, summary
from pasta_async.events import SyncJoined, SyncWaiting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pasta_async.events import Event
    from pasta_async.results import Generation, ThreadRecord
    from pasta_async.streaming import AnswerStream

__all__ = ["LiveDisplay", "view"]

_INTERVAL = 0.1
"""Seconds between two pictures. Drawing takes time from decoding, so not more often."""

_MAIN_LINES = 6
_PROGRESS = 12


class LiveDisplay:
    """Draws the answer so far several times a second; at the end the text, the timeline and the numbers.

    Args:
        console: Where to draw; None: standard output. Without a terminal, only the end is shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._stream: AnswerStream | None = None
        self._answer: AnswerStream | None = None
        self._baseline = self._waiting = False
        self._next: asyncio.TimerHandle | None = None

    def begin(self, stream: AnswerStream, *, baseline: bool) -> None:
        """Start drawing."""
        self._stream, self._baseline, self._waiting = stream, baseline, False
        if not baseline:
            self._answer = stream
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
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
        tell_notes(answer)

    def broken(self) -> None:
        """The text so far."""
        self._stop()
        if self._answer and (partial := self._answer.partial) and partial.text:
            self._print(partial.text)

    def _draw(self) -> None:
        self._next = None
        if self._live and self._stream and (partial := self._stream.partial):
            title = "baseline" if self._baseline else "main"
            picture = view(partial, title=title, waiting=self._waiting, width=self._console.width)
            self._live.update(picture, refresh=True)

    def _stop(self) -> None:
        if self._next:
            self._next.cancel()
            self._next = None
        if self._live:
            self._live.stop()
            self._live = None

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
    names = [label(thread) for thread in threads]
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
