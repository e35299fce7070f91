"""The live display of an answer: its threads side by side. Needs the extra `cli`, which brings rich."""

from __future__ import annotations

import asyncio

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pasta_async.cli.display import LABEL, Display, label, printable, summary
from pasta_async.events import Event, SyncJoined, SyncWaiting
from pasta_async.results import Generation
from pasta_async.streaming import AnswerStream

_INTERVAL = 0.1
"""Seconds between two pictures; drawing more often would take too much time from decoding."""

_MAIN_LINES = 6
_PROGRESS = 12


class LiveDisplay(Display):
    """Draws the answer so far several times a second; at the end the text, the timeline and the numbers.

    It draws on `console`, or on standard output. Without a terminal, only the end is shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._waiting = False  # main waits for its threads
        self._next: asyncio.TimerHandle | None = None  # draws the next picture

    def begin(self, stream: AnswerStream) -> None:
        """Start drawing."""
        super().begin(stream)
        self._waiting = False
        self._live.start()

    def show(self, event: Event) -> None:
        """Draw within the interval, also if no event follows."""
        if isinstance(event, SyncWaiting | SyncJoined):
            self._waiting = isinstance(event, SyncWaiting)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(_INTERVAL, self._draw)

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """Print the answer, the timeline and the numbers."""
        width = min(max(self._console.width - 44, 16), 64)
        self._end_with(answer.text, "", *summary(answer, baseline, width=width))

    def broken(self) -> None:
        """Print the text so far."""
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
            self._console.print(Text(printable(line)), soft_wrap=True)


def view(answer: Generation, *, width: int, title: str = "main", waiting: bool = False) -> RenderableType:
    """A picture of an answer so far: the main thread on top, below it a row for each promise.

    It fits a screen of `width` characters. The main thread has a `title` and may be `waiting` for the others.
    """
    main, *threads = answer.threads
    heading = f"{title} · {main.tokens} tokens" + (" · waits for its threads" if waiting else "")
    text = Text(_tail(main.text, (width - 4) * _MAIN_LINES), overflow="fold")
    top = Panel(text, title=heading, title_align="left", border_style="yellow" if waiting else "green")
    table = Table.grid(padding=(0, 1), expand=True)
    for column in (LABEL, _PROGRESS, None, None):
        table.add_column(no_wrap=True, max_width=column)
    for thread in threads:
        is_over = thread.ended is not None
        style = "green" if is_over else "cyan"
        if thread.started is None:
            style = "dim"
        total = thread.estimate or 100
        done = total if is_over else min(thread.tokens, 0.99 * total)
        progress = ProgressBar(total, done, width=_PROGRESS, complete_style=style, finished_style=style)
        table.add_row(
            Text(label(thread), style=style),
            progress,
            f"{thread.tokens}/{thread.estimate or '?'}",
            Text(_tail(" ".join(thread.text.split()), max(width - LABEL - _PROGRESS - 12, 16))),
        )
    return Group(top, table) if threads else top


def _tail(text: str, length: int) -> str:
    return printable(text if len(text) <= length else "…" + text[1 - length :])
