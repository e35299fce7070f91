"""`pasta-async generate`: one answer, and its baseline if asked for, on a display and in files."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import typer

from pasta_async.cli.display import JsonDisplay, LiveDisplay, TextDisplay
from pasta_async.cli.errors import fail
from pasta_async.client import Client
from pasta_async.limits import Limits
from pasta_async.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pasta_async.cli.display import Display
    from pasta_async.protocol import Backend, Message
    from pasta_async.results import Generation

    _Both = tuple[Generation, Generation | None]

__all__ = ["Files", "Form", "Job", "answer", "run"]

Form = Literal["text", "live", "json"]

_WARM_UP = Sampling(max_tokens=4)
"""A few tokens before a comparison, so that what only a first request pays is in neither measurement."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where to write; None: not at all."""

    trace: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Leave with exit code 2 if a file cannot be there, before any work is done."""
        for option, path in (("--trace", self.trace), ("--html", self.html)):
            if path and path.is_dir():
                fail(f"{option}: {path} is a folder; name a file", code=2)
            if path and not path.parent.is_dir():
                fail(f"{option}: there is no folder {path.parent}", code=2)

    def write(self, answer: Generation, baseline: Generation | None, *, prompt: str) -> None:
        """Write what was asked for.

        Args:
            answer: What is drawn.
            baseline: Drawn beside it.
            prompt: Shown on the page.
        """
        if self.trace:
            _write(self.trace, json.dumps(answer.to_perfetto(baseline)))
        if self.html:
            from pasta_async.trace import timeline_page

            _write(self.html, timeline_page(answer, baseline, prompt=prompt))


@dataclass(frozen=True)
class Job:
    """What is to be answered, and how."""

    messages: list[Message]
    sampling: Sampling
    limits: Limits
    prompted: bool | None
    template: Mapping[str, Any]
    compare: bool
    files: Files = Files()

    @classmethod
    def of(
        cls, messages: list[Message], *, sampling: dict[str, Any], limits: dict[str, Any], **options: Any
    ) -> Self:
        """A job from what the command line gave; the environment has the other limits.

        Raises:
            InvalidRequestError: A value is out of range.
        """
        limited = Limits(**limits)
        return cls(messages, Sampling(**sampling), limited, **options)


def run(job: Job, backend: Sequence[str] | Backend | None, *, form: Form) -> None:
    """Answer on a display. Ctrl-C ends it with the answer so far and exit code 130.

    Raises:
        PastaError: What ended the answer; what there was of it is printed.
    """
    job.files.check()
    display = _display(form)
    try:
        generation, baseline = asyncio.run(_on_a_client(job, backend, display))
    except KeyboardInterrupt:
        sys.stderr.write("pasta-async: interrupted\n")
        raise typer.Exit(130) from None
    job.files.write(generation, baseline, prompt=job.messages[-1]["content"])


def _display(form: Form) -> Display:
    return {"live": LiveDisplay, "json": JsonDisplay, "text": TextDisplay}[form]()


async def _on_a_client(job: Job, backend: Sequence[str] | Backend | None, display: Display) -> _Both:
    try:
        async with Client(backend, limits=job.limits) as client:
            return await answer(client, job, display)
    except BaseException:  # a cancellation too: nothing runs any more, show what there is
        display.broken()
        raise


async def answer(client: Client, job: Job, display: Display) -> _Both:
    """Show the answer, decode the baseline if it is asked for, and show the result. Returns both.

    Cancelling it ends the answer; the display then has what there is of it.
    """
    await client.connect()  # not part of anybody's time
    if job.compare:
        await client.generate("Hello.", sampling=_WARM_UP, prompted=job.prompted)
    generation = await _watch(client, job, display, baseline=False)
    baseline = await _watch(client, job, display, baseline=True) if job.compare else None
    display.done(generation, baseline)
    return generation, baseline


async def _watch(client: Client, job: Job, display: Display, *, baseline: bool) -> Generation:
    stream = client.stream(
        job.messages,
        sampling=job.sampling,
        prompted=job.prompted,
        baseline=baseline,
        chat_template_kwargs=job.template,
    )
    async with stream:
        display.begin(stream, baseline=baseline)
        async for event in stream:
            display.show(event)
        return await stream.result()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")
