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
        self._console = console or Console(highlight=False)

    async def watch(self, stream: AnswerStream) -> None:
        """Draw the answer, also while no event comes. Cancelling it gives the terminal back."""
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            drawing = asyncio.create_task(self._draw(stream, live))
            try:
                await stream.result()
            finally:
                drawing.cancel()
                await asyncio.wait([drawing])

    async def _draw(self, stream: AnswerStream, live: Live) -> None:
        while True:
            if partial := stream.partial:
                live.update(view(partial, width=self._console.width), refresh=True)
            await asyncio.sleep(_INTERVAL)

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """Print the answer, the timeline and the numbers."""
        width = min(max(self._console.width - 44, 16), 64)
        self._print(answer.text, "", *summary(answer, baseline, width=width))

    def broken(self, partial: Generation | None) -> None:
        """Print the text so far."""
        if partial and partial.text:
            self._print(partial.text)

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(Text(printable(line)), soft_wrap=True)


def view(answer: Generation, *, width: int) -> RenderableType:
    """A picture of an answer so far, for a screen of `width` characters.

    The main thread is on top, below it a row for each promise.
    """
    main, *threads = answer.threads
    text = Text(_tail(main.text, (width - 4) * _MAIN_LINES), overflow="fold")
    top = Panel(text, title=f"main · {main.tokens} tokens", title_align="left", border_style="green")
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
