"""`pasta-async generate`: one answer, and its baseline if asked for, on a display and in files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.cli.command import fail, read_text, say
from pasta_async.client import Client
from pasta_async.errors import GenerationTimeoutError, InvalidRequestError, PastaError
from pasta_async.options import AnswerOptions, Limits, Options, Sampling
from pasta_async.protocol import Backend, Model
from pasta_async.results import Generation

if TYPE_CHECKING:
    from pasta_async.cli.display import Display

_Both = tuple[Generation, Generation | None]

_WARM_UP = Sampling(max_tokens=4)
"""A few tokens before a comparison, so that what only a first request pays is in neither measurement."""


class GenerateOptions(Sampling, Limits):
    """What is to be answered, and how; where it is shown and written."""

    prompt: str
    """The prompt; - reads standard input."""
    backend: str | None = None
    """local:, local:pasta-smol, local:/path, http://host:port or sglang:/path; default:
    PASTA_BACKEND, or local:."""
    live: bool = False
    """Show the threads side by side."""
    compare: bool = False
    """Decode the baseline as well, and tell the speed-ups."""
    as_json: bool = False
    """Print the whole result as JSON."""
    html: Path | None = None
    """Write the timeline to this file, as one page that needs nothing else."""
    system: str | None = None
    """System message."""
    template: tuple[str, ...] = ()
    """NAME=VALUE for the chat template; may be repeated."""

    @classmethod
    def _field_label(cls, path: tuple[int | str, ...]) -> str:
        return f"--{path[0]}".replace("_", "-")

    def given(self, model: type[Options]) -> dict[str, Any]:
        """The fields of one of its models that were set: those of `Sampling`, or of `Limits`."""
        return self.model_dump(include=self.model_fields_set & set(model.model_fields))


def run(options: GenerateOptions, backend: Backend | None) -> None:
    """Answer on a display. A `backend` decodes instead of what the options name.

    Raises:
        PastaError: What ended the answer; what there was of it is printed. So it is after Ctrl-C.
    """
    from pasta_async.cli.display import Display, JsonDisplay, LiveDisplay
    from pasta_async.trace import timeline_page

    if options.live and options.as_json:
        raise InvalidRequestError("--live and --json exclude each other")
    if options.prompt == "-":
        options = options.model_copy(update={"prompt": read_text("-")})
    _check_file("--html", options.html)
    display = LiveDisplay() if options.live else JsonDisplay() if options.as_json else Display()
    generation, baseline = asyncio.run(_on_a_client(options, backend, display))
    if options.html:
        _write(options.html, timeline_page(generation, baseline, prompt=options.prompt))


async def _on_a_client(options: GenerateOptions, backend: Backend | None, display: Display) -> _Both:
    async with Client(backend or options.backend, limits=options.given(Limits)) as client:
        try:
            return await answer(client, options, display)
        except BaseException:  # a cancellation too: nothing decodes any more, show what there is
            display.broken()
            raise


async def answer(client: Client, options: GenerateOptions, display: Display) -> _Both:
    """Show the answer, decode the baseline if it is asked for, and show the result. Returns both.

    Cancelling it ends the answer; the display then has what there is of it.
    """
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    messages = [*system, {"role": "user", "content": options.prompt}]
    kwargs: AnswerOptions = {
        "sampling": options.given(Sampling),
        "chat_template_kwargs": dict(map(_pair, options.template)),
    }
    info = await _connected(client)  # not part of anybody's time
    if info.dtype not in (None, "float32"):  # no exact computation: say so
        say(f"{info.name} is computed in {info.dtype}")
    if options.compare:
        await client.generate("Hello.", sampling=_WARM_UP)
    done: list[Generation] = []
    for kwargs["baseline"] in (False, True)[: 1 + options.compare]:
        async with client.stream(messages, **kwargs) as stream:
            display.begin(stream)
            async for event in stream:
                display.show(event)
            done.append(await stream.result())
    both = done[0], done[1] if options.compare else None
    display.done(*both)
    for note in done[0].notes:  # what the backend could not honour
        say(f"note: {note}")
    return both


async def _connected(client: Client) -> Model:
    """Connect within the time that an answer has."""
    seconds = client.limits.timeout
    try:
        async with asyncio.timeout(seconds):
            return await client.connect()
    except TimeoutError as error:
        if isinstance(error, PastaError):
            raise
        raise GenerationTimeoutError(f"connecting took longer than --timeout {seconds:g}") from error


def _pair(item: str) -> tuple[str, Any]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        raise InvalidRequestError(f"--template: {item!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _check_file(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be there, before any work is done."""
    if path and path.is_dir():
        raise InvalidRequestError(f"{option}: {path} is a folder; name a file")
    if path and not path.parent.is_dir():
        raise InvalidRequestError(f"{option}: there is no folder {path.parent}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")
