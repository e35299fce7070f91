"""`pasta-async serve`: the OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer needs it at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_async.cli.words import BACKEND, errors_in_words, given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.protocol import Backend

__all__ = ["serve"]

_ACCESS, _LIMITS, _SEEN = "Who may ask", "Limits", "What an operator sees"


def serve(
    context: typer.Context,
    backend: Annotated[list[str] | None, BACKEND] = None,
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
            "--log-text", help="Let prompts and answers appear in logs and traces.", rich_help_panel=_SEEN
        ),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text, or json for JSON lines; default: text.", rich_help_panel=_SEEN)
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
    with errors_in_words():
        code = _run(backend or [], context.obj, settings=given(settings), limits=given(limits))
    if code:
        raise typer.Exit(code)


def _run(
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
