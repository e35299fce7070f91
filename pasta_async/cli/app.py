"""The commands and their options."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer needs it at run time
from typing import Annotated, Any

import typer

from pasta_async.cli.serve import serve
from pasta_async.cli.words import BACKEND, errors_in_words, fail, given, read_text

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


@app.command()
def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    backend: Annotated[list[str] | None, BACKEND] = None,
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
    from pasta_async.cli.files import Files
    from pasta_async.cli.generate import Job, run

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
    with errors_in_words():
        job = Job.of(
            _messages(read_text(prompt) if prompt == "-" else prompt, system),
            sampling=given(sampling),
            limits=given({"max_threads": max_threads, "timeout": timeout}),
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
        with errors_in_words():
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
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: a GPU if there is one.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 30000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command.")] = False,
) -> None:
    """Start an SGLang server with the flags that suit PASTA. Other options go to SGLang as they are."""
    from pasta_async.cli.sglang import become_server

    if device not in (None, "cuda", "cpu"):
        fail(f"--device: {device!r} is neither cuda nor cpu", code=2)
    with errors_in_words():
        become_server(model, device=device, host=host, port=port, extra=context.args, dry_run=dry_run)


app.command()(serve)


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
