"""The commands and their options."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path  # noqa: TC003 - typer needs it at run time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pasta_async.cli.errors import fail, read_text, reported_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.protocol import Backend

__all__ = ["app"]

app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        from pasta_async import __version__

        sys.stdout.write(f"pasta-async {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """LLM answers sooner: what is independent in an answer is decoded in parallel."""


_SAMPLING, _LIMITS, _MODEL = "Sampling", "Limits", "Model"
_ACCESS, _SEEN = "Who may ask", "What an operator sees"

_BACKEND: Any = typer.Option(
    "--backend",
    "-b",
    help="local:, local:/path, http://host:port or sglang:/path; may be repeated, to spread answers over "
    "servers of one model; default: PASTA_BACKEND, or local:.",
)


@app.command()
def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    backend: Annotated[list[str] | None, _BACKEND] = None,
    live: Annotated[bool, typer.Option("--live", help="Show the threads side by side.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode the baseline as well, and tell the speed-ups.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the timeline as a trace that Perfetto opens."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the timeline as one page that needs nothing else."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.", rich_help_panel=_MODEL)] = None,
    prompted: Annotated[
        bool | None,
        typer.Option(
            "--prompted/--no-prompted",
            help="Explain the tags to the model, or trust that it knows them; default: what it needs.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For the chat template.", rich_help_panel=_MODEL),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the answer; may be repeated.", rich_help_panel=_SAMPLING),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of the whole answer.", rich_help_panel=_SAMPLING)
    ] = None,
    max_threads: Annotated[
        int | None, typer.Option(help="Threads that decode at once.", rich_help_panel=_LIMITS)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for the answer.", rich_help_panel=_LIMITS)
    ] = None,
) -> None:
    """Answer a prompt."""
    from pasta_async.cli.generate import Files, Job, run

    if live and json:
        fail("--live and --json exclude each other", code=2)
    sampling = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "stop": tuple(stop or ()),
        "max_tokens": max_tokens,
    }
    with reported_errors():
        job = Job.of(
            _messages(read_text(prompt) if prompt == "-" else prompt, system),
            sampling=_given(sampling),
            limits=_given({"max_threads": max_threads, "timeout": timeout}),
            prompted=prompted,
            template=dict(_pair(item) for item in template or ()),
            compare=compare,
            files=Files(trace, html),
        )
        run(job, context.obj or backend, form="live" if live else "json" if json else "text")


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Annotated answers; - is stdin.")],
) -> None:
    """Say what is not well-formed in annotated answers; the exit code is 1 if anything is."""
    from pasta_async.lang import check as diagnose

    clean = True
    for name in files:
        with reported_errors():
            found = diagnose(read_text(name))
        place = "<stdin>" if name == "-" else name
        for diagnostic in found:
            clean = False
            sys.stdout.write(f"{place}:{diagnostic}\n")
    if not clean:
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def sglang(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the Hugging Face hub.")],
    device: Annotated[
        Literal["cuda", "cpu"] | None, typer.Option(help="Default: a GPU if there is one.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 30000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command.")] = False,
) -> None:
    """Start an SGLang server with the flags that suit PASTA. Other options go to SGLang as they are."""
    from pasta_async.backends.sglang.launch import server_command

    with reported_errors():
        command = server_command(model, device=device, host=host, port=port, extra=context.args)
    width = max(map(len, command.reasons), default=0)
    for flag, reason in command.reasons.items():
        sys.stderr.write(f"{flag:{width}}  {reason}\n")
    (sys.stdout if dry_run else sys.stderr).write(shlex.join(command.argv) + "\n")
    if not dry_run:
        sys.stderr.flush()
        os.execv(command.argv[0], command.argv)


@app.command()
def serve(
    context: typer.Context,
    backend: Annotated[list[str] | None, _BACKEND] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at; default: 8000.")] = None,
    model_name: Annotated[
        list[str] | None, typer.Option(help="A further name of the model; may be repeated.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="For requests that name none; default: 1, as OpenAI's.")
    ] = None,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            help="Keys, one on each line; PASTA_SERVER_API_KEYS has some too.", rich_help_panel=_ACCESS
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="An origin whose pages may ask; may be repeated.", rich_help_panel=_ACCESS),
    ] = None,
    max_answers: Annotated[
        int | None, typer.Option(help="Answers that decode at once; default: 64.", rich_help_panel=_LIMITS)
    ] = None,
    max_queue: Annotated[
        int | None, typer.Option(help="Answers that wait; default: 256.", rich_help_panel=_LIMITS)
    ] = None,
    max_threads: Annotated[
        int | None, typer.Option(help="Threads of an answer that decode at once.", rich_help_panel=_LIMITS)
    ] = None,
    client_threads: Annotated[
        int | None, typer.Option(help="Threads of all answers that decode at once.", rich_help_panel=_LIMITS)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of an answer.", rich_help_panel=_LIMITS)
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a prompt.", rich_help_panel=_LIMITS)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for an answer; default: 600.", rich_help_panel=_LIMITS)
    ] = None,
    drain_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds for open answers after SIGTERM; default: 30.", rich_help_panel=_LIMITS),
    ] = None,
    log_text: Annotated[
        bool | None,
        typer.Option(
            "--log-text",
            help="Let prompts and answers appear in logs and traces.",
            rich_help_panel=_SEEN,
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="text, or json for JSON lines; default: text.", rich_help_panel=_SEEN),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(help="debug, info, warning or error; default: info.", rich_help_panel=_SEEN),
    ] = None,
    otel: Annotated[
        bool | None,
        typer.Option(
            help="Send traces over OTLP, as the OTEL_* variables say; default: if they name an endpoint.",
            rich_help_panel=_SEEN,
        ),
    ] = None,
) -> None:
    """Serve OpenAI's API: answers decode in parallel, for any OpenAI client.

    Every setting has a variable in the environment too, PASTA_SERVER_PORT for instance (docs/serving.md).
    """
    settings = {
        "host": host,
        "port": port,
        "model_names": model_name,
        "temperature": temperature,
        "api_keys_file": api_keys_file,
        "cors_origins": cors_origin,
        "max_answers": max_answers,
        "max_queue": max_queue,
        "max_tokens": max_tokens,
        "max_prompt_tokens": max_prompt_tokens,
        "timeout": timeout,
        "drain_seconds": drain_seconds,
        "log_text": log_text,
        "log_format": log_format,
        "log_level": log_level,
        "otel": otel,
    }
    limits = {"max_threads": max_threads, "client_threads": client_threads}
    with reported_errors():
        code = _serve(backend or [], context.obj, settings=_given(settings), limits=_given(limits))
    if code:
        raise typer.Exit(code)


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": prompt}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _pair(item: str) -> tuple[str, Any]:
    """A name and a value, which is read as JSON where it is some."""
    import json

    name, equals, value = item.partition("=")
    if not name or not equals:
        fail(f"--template: {item!r} is not NAME=VALUE", code=2)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _serve(
    names: Sequence[str], backend: Backend | None, *, settings: dict[str, Any], limits: dict[str, Any]
) -> int:
    """Serve until a signal ends it; the exit code."""
    try:
        from pasta_async.server.run import serve as run
        from pasta_async.server.settings import ServerSettings
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the server needs {error.name}, which is not installed; "
            "pip install 'pasta_async[server]' brings it"
        ) from error
    from pasta_async.limits import Limits

    chosen = ServerSettings(**settings)
    limited = Limits(**limits)
    return run(backend or names or None, chosen, limited)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The options that the command line gave."""
    return {name: value for name, value in values.items() if value is not None}
