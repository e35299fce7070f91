"""The commands of `pasta-async`."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Literal

import typer

from pasta_async import __version__
from pasta_async.cli.command import as_command, read_text, reported_errors, require_stdout
from pasta_async.cli.generate import GenerateOptions, run
from pasta_async.cli.models import ExportOptions, PullOptions, export, pull
from pasta_async.errors import missing_extra

app: typer.Typer = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _tell_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"pasta-async {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """LLM answers sooner: what is independent in an answer is decoded in parallel."""


_FLAGS = {"backend": ["--backend", "-b"], "as_json": ["--json"], "live": ["--live"], "compare": ["--compare"]}

app.command("generate", help="Answer a prompt.")(
    as_command(GenerateOptions, run, reported_errors, positional=["prompt"], flags=_FLAGS)
)
app.command("pull", help="Get the base of pasta-smol, or of an adapter that has a base.json.")(
    as_command(PullOptions, pull, reported_errors, positional=["model"])
)
app.command("export", help="Write a model, its adapter merged, as a folder for SGLang and transformers.")(
    as_command(ExportOptions, export, reported_errors, positional=["model", "out"])
)


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Annotated answers; - is stdin.")],
) -> None:
    """Say what is not well-formed in annotated answers; the exit code is 1 if anything is."""
    from pasta_async.lang import check as diagnose

    require_stdout()
    clean = True
    with reported_errors():
        for name in files:
            place = "<stdin>" if name == "-" else name
            for diagnostic in diagnose(read_text(name)):
                clean = False
                sys.stdout.write(f"{place}:{diagnostic}\n")
    if not clean:
        raise typer.Exit(1)


_FURTHER = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_FURTHER)
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
    from pasta_async.backends.sglang.command import server_command

    with reported_errors():
        command = server_command(model, device=device, host=host, port=port, extra=context.args)
    width = max(map(len, command.reasons), default=0)
    for flag, reason in command.reasons.items():
        sys.stderr.write(f"{flag:{width}}  {reason}\n")
    variables = "".join(f"{name}={value} " for name, value in command.environment.items())
    (sys.stdout if dry_run else sys.stderr).write(f"{variables}{shlex.join(command.argv)}\n")
    if not dry_run:
        sys.stderr.flush()
        os.execve(command.argv[0], command.argv, {**os.environ, **command.environment})


@app.command(context_settings={**_FURTHER, "help_option_names": []})
def serve(context: typer.Context) -> None:
    """Serve OpenAI's API: answers decode in parallel, for any OpenAI client.

    Every option has a variable in the environment too, PASTA_SERVER_PORT for instance (docs/serving.md).
    """
    with reported_errors():  # imported here, since other commands do without the server and its extra
        try:
            from pasta_async.cli.serve import ServeOptions, run
        except ModuleNotFoundError as error:
            raise missing_extra("the server", "server", error) from error
    command = as_command(ServeOptions, run, reported_errors, flags=_FLAGS, omitted=["api_keys"])
    nested = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    nested.command(help=serve.__doc__)(command)
    nested(args=context.args, prog_name="pasta-async serve", obj=context.obj)
