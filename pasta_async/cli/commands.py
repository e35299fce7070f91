"""The commands of `pasta-async`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import __version__
from pasta_async.cli.command import add_options, reported_errors, run_coroutine, settings_of
from pasta_async.client import Client
from pasta_async.errors import InvalidRequestError, missing_extra
from pasta_async.options import AnswerOptions, Limits, Options, Parallel, Sampling, Settings
from pasta_async.results import Generation

if TYPE_CHECKING:
    from pasta_async.backends.local.checkpoint import Checkpoint
    from pasta_async.cli.display import Display

_WARM_UP = Sampling(max_tokens=4)
"""A few tokens before a comparison, so that the costs of a first request are in neither measurement."""


class GenerateOptions(Options):
    """A prompt, the way it is answered, and the place where the answer is shown."""

    prompt: str
    """The prompt; - reads standard input."""
    parallel: Parallel = "auto"
    """auto, always, never, or outline: lists of an untrained model in parallel."""
    live: bool = False
    """Show the threads side by side."""
    compare: bool = False
    """Decode the baseline as well, and show the speed-ups."""
    as_json: bool = Field(default=False, alias="json")
    """Print the whole result as JSON."""
    html: Path | None = None
    """Write the timeline to this file, as one page that needs nothing else."""
    system: str | None = None
    """System message."""
    template: tuple[str, ...] = ()
    """NAME=VALUE for the chat template; may be repeated."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command and leave the process with its exit code.

    The code is 0 when all is well, 1 for an error (in words on stderr), 2 for a misuse, 130 after Ctrl-C.

    Args:
        args: Command and options; None: those of the process.

    Raises:
        SystemExit: Always.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a character that its encoding lacks must not end the answer
            stream.reconfigure(errors="replace")
    line = sys.argv[1:] if args is None else [*args]
    with reported_errors("pasta-async"):
        options, further = _program(serves=line[:1] == ["serve"]).parse_known_args(line)
        if further and options.work is not sglang:
            options.parser.error(f"unrecognized arguments: {' '.join(further)}")
        if further and line.index(further[0]) < line.index(options.model):
            # The value of an option that only SGLang knows would be taken for the model.
            options.parser.error(f"the model comes first, then SGLang's own options ({further[0]})")
        options.further = further
        options.work(options)
    sys.exit(0)


def _program(*, serves: bool) -> ArgumentParser:
    """The parser of all commands; if it `serves`, with the options of the server, which needs an extra.

    Raises:
        ModuleNotFoundError: The extra is missing; the message says so.
    """
    program = ArgumentParser(
        "pasta-async",
        description="LLM answers sooner: the independent parts of an answer are decoded in parallel.",
        allow_abbrev=False,
    )
    program.add_argument("--version", action="version", version=f"pasta-async {__version__}")
    commands = program.add_subparsers(required=True, metavar="COMMAND")

    def add(work: Callable[..., None]) -> ArgumentParser:
        about = work.__doc__
        command = commands.add_parser(work.__name__, help=about, description=about, allow_abbrev=False)
        command.set_defaults(work=work, parser=command)
        return command

    generating = add(generate)
    add_options(generating, GenerateOptions, ["prompt"])
    add_options(generating, Sampling)
    serving = add(serve)
    for parser in (generating, serving):
        add_options(parser, Limits)
        described = " ".join((Settings.model_fields["backend"].description or "").split())
        parser.add_argument("--backend", help=f"{described} Default: PASTA_BACKEND, or local:.")
    server = add(sglang)
    server.add_argument("model", help="a model folder, or a name on the Hugging Face hub")
    server.add_argument("--device", choices=["cuda", "cpu"], help="default: a GPU if there is one")
    server.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    server.add_argument("--port", default=30000, type=int, help="port to listen at (default: %(default)s)")
    server.add_argument("--dry-run", action="store_true", help="only print the command")
    add(check).add_argument("files", nargs="+", metavar="FILE", help="annotated answers; - is stdin")
    pulling = add(pull)
    pulling.add_argument(
        "model",
        help="pasta-qwen, pasta-smol, qwen-1.5b, qwen-0.5b, or the folder of an adapter with a base.json",
    )
    base = 'the base as you have it: a GGUF file, or a folder, "$(hf download --quiet NAME)" for instance'
    pulling.add_argument("--base", type=Path, help=base)
    exporting = add(export)
    exporting.add_argument(
        "model", help="a name as for `pull`, a model folder, the folder of an adapter, a GGUF file"
    )
    exporting.add_argument("out", type=Path, help="the new folder")
    formats = ["float32", "bfloat16", "float16"]
    exporting.add_argument("--dtype", default="float32", choices=formats, help="of the weights")
    if serves:
        try:
            from pasta_async.server import ServerSettings
        except ModuleNotFoundError as error:
            raise missing_extra("the server", "server", error) from error
        add_options(serving, ServerSettings)
    return program


def say(message: str) -> None:
    """Tell the user something on standard error."""
    sys.stderr.write(f"pasta-async: {message}\n")


def _read_text(name: str) -> str:
    """The text of a file, without a byte order mark; `-` is standard input."""
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(f"{name}: not UTF-8 at byte {error.start}") from error


def generate(arguments: Namespace) -> None:
    """Answer a prompt."""
    options = settings_of(GenerateOptions, arguments)
    sampling = settings_of(Sampling, arguments)
    limits = settings_of(Limits, arguments)
    from pasta_async.cli.display import Display, JsonDisplay
    from pasta_async.trace import timeline_page

    if options.live and options.as_json:
        raise InvalidRequestError("--live and --json exclude each other")
    if options.prompt == "-":  # the line break that a shell adds at the end is no part of the prompt
        text = _read_text("-").removesuffix("\n").removesuffix("\r")
        options = options.model_copy(update={"prompt": text})
    if options.html and (options.html.is_dir() or not options.html.parent.is_dir()):
        raise InvalidRequestError(f"--html: {options.html} needs to be a file in a folder that there is")
    display = JsonDisplay() if options.as_json else Display()
    if options.live:
        try:
            from pasta_async.cli.live import LiveDisplay
        except ModuleNotFoundError as error:
            raise missing_extra("--live", "cli", error) from error
        display = LiveDisplay()

    async def answer_on_a_client() -> tuple[Generation, Generation | None]:
        async with Client(arguments.backend, limits=limits) as client:
            return await show_answer(client, options, sampling, display)

    answer, baseline = run_coroutine(answer_on_a_client())
    if options.html:
        options.html.write_text(timeline_page(answer, baseline, prompt=options.prompt), "utf-8")


async def show_answer(
    client: Client, options: GenerateOptions, sampling: Sampling, display: Display
) -> tuple[Generation, Generation | None]:
    """Show the answer, decode the baseline if it is asked for, and show the result. Returns both.

    Raises:
        PastaError: The error that ended the answer.

    Cancelling it ends the answer; the display then shows the answer so far.
    """
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    messages = [*system, {"role": "user", "content": options.prompt}]
    asked: AnswerOptions = {
        "sampling": sampling,
        "parallel": options.parallel,
        "chat_template_kwargs": dict(map(_pair, options.template)),
    }
    stream = client.stream(messages, **asked)
    baseline: Generation | None = None
    try:
        if options.compare:
            await client.generate("Hello.", sampling=_WARM_UP)
        async with stream:
            await display.watch(stream)
            answer = await stream.result()
        if options.compare:
            asked["baseline"] = True
            baseline = await client.generate(messages, **asked)
    except BaseException:  # also after a cancellation: no request is open any more
        display.broken(stream.partial)
        raise
    display.done(answer, baseline)
    for note in answer.notes:
        say(f"note: {note}")
    return answer, baseline


def _pair(item: str) -> tuple[str, Any]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        raise InvalidRequestError(f"--template: {item!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def serve(arguments: Namespace) -> None:
    """Serve OpenAI's API; all options have variables, PASTA_SERVER_PORT for instance."""
    from pasta_async.server import ServerSettings, create_app, uvicorn_server

    settings = settings_of(ServerSettings, arguments)
    app = create_app(arguments.backend, settings, limits=settings_of(Limits, arguments))
    server = uvicorn_server(app, settings)
    try:
        server.run()
    except SystemExit:  # uvicorn has printed the error, but ends with another status
        sys.exit(1)
    if not server.started:
        sys.exit(1)


def sglang(arguments: Namespace) -> None:
    """Start an SGLang server with the flags that suit PASTA; other options go to SGLang as they are."""
    from pasta_async.backends.sglang.command import server_command

    settings = {name: getattr(arguments, name) for name in ("device", "host", "port")}
    command = server_command(arguments.model, **settings, extra=arguments.further)
    width = max(map(len, command.reasons), default=0)
    for flag, reason in command.reasons.items():
        sys.stderr.write(f"{flag:{width}}  {reason}\n")
    variables = "".join(f"{name}={value} " for name, value in command.environment.items())
    shown = sys.stdout if arguments.dry_run else sys.stderr
    shown.write(f"{variables}{shlex.join(command.argv)}\n")
    if not arguments.dry_run:
        sys.stderr.flush()
        os.execve(command.argv[0], command.argv, {**os.environ, **command.environment})


def check(arguments: Namespace) -> None:
    """Print what is not well-formed in annotated answers (no plans); the exit code is 1 if anything is."""
    from pasta_async.lang import parse

    clean = True
    for name in arguments.files:
        file = "<stdin>" if name == "-" else name
        for diagnostic in parse(_read_text(name)).diagnostics:
            clean = False
            sys.stdout.write(f"{file}:{diagnostic}\n")
    sys.stdout.flush()
    if not clean:
        sys.exit(1)


def pull(arguments: Namespace) -> None:
    """Get a model that ships by name, or the base of an adapter that has a base.json."""
    from pasta_async.backends.local.pull import BASE_FILE, SHIPPED_MODELS, BaseSource, find_model

    folder = find_model(arguments.model)
    if (source := BaseSource.of(folder)) is None:
        raise InvalidRequestError(
            f"{arguments.model}: nothing to get, for it has no {BASE_FILE}; "
            f"these ship: {', '.join(SHIPPED_MODELS)}"
        )
    if arguments.base is not None:
        _opened(folder, arguments.base)  # its shapes are checked
        source.choose(arguments.base)
    elif source.find() is None:
        say(f"{source.megabytes} to download: {source.file} of {source.repository} on the Hugging Face hub")
        try:
            source.fetch(say)
        except ModuleNotFoundError as error:
            raise missing_extra("this", "local", error) from error
    say(f"{arguments.model}: its base is {source.find()}")


def export(arguments: Namespace) -> None:
    """Write a model, its adapter merged, as a folder for SGLang and transformers."""
    from pasta_async.backends.local.pull import find_model

    checkpoint = _opened(find_model(arguments.model))
    from pasta_async.backends.local.export import export_folder

    export_folder(checkpoint, arguments.out, arguments.dtype)
    say(f"{arguments.model} is in {arguments.out}")


def _opened(path: Path, base: Path | None = None) -> Checkpoint:
    try:
        from pasta_async.backends.local.adapter import open_checkpoint

        return open_checkpoint(path, base)
    except ModuleNotFoundError as error:
        raise missing_extra("this", "local", error) from error
