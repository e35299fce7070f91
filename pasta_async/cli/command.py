"""How every command of the project reads its command line and how it ends."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Protocol, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pasta_async.errors import InvalidRequestError, PastaError

S = TypeVar("S", bound=BaseModel)
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_CONTEXT = "typer_context"
"""Name of a command's parameter for typer; no field of settings may have it."""


class CommandSettings(BaseModel):
    """Settings of a command; every field is an option of its command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Command(Protocol):
    """The `main` of a module that is a command."""

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Read a command line (None: that of the process), do the work, end the process."""
        ...


def command(
    settings: type[S],
    work: Callable[[S], object],
    program: str,
    description: str | None,
    *,
    positional: Sequence[str] = (),
    resumes: bool = False,
) -> Command:
    """The `main` of a module that is a command: it reads settings from the command line and does the work.

    It always ends the process, with status 0, 1 for a `PastaError`, 2 for a misuse, 130 after Ctrl-C.

    Args:
        settings: Every field is an option, `--its-name`; its `description` is the help. Required fields are
            required options, a `tuple` may be given several times, a `bool` has a `--no-` form.
        work: What the command does; a coroutine is run. Text that it returns is printed, a dict as JSON.
        program: Name of the command, for the help.
        description: What the command does, for the help: the module's docstring.
        positional: Fields that are given by their place, without a name.
        resumes: Whether the same command goes on after Ctrl-C, which is then said.
    """

    def run(given: S, _: object) -> None:
        found = work(given)
        if inspect.iscoroutine(found):
            found = asyncio.run(found)
        if isinstance(found, str | dict):
            sys.stdout.write((found if isinstance(found, str) else json.dumps(found, indent=1)) + "\n")

    def main(arguments: Sequence[str] | None = None) -> None:
        import typer

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        errors = partial(_ending, resumes)
        app.command(help=description)(as_command(settings, run, errors, positional=positional))
        app(args=None if arguments is None else list(arguments), prog_name=program)

    return main


def as_command(
    settings: type[S],
    work: Callable[[S, Any], object],
    errors: Callable[[], AbstractContextManager[None]],
    *,
    positional: Sequence[str] = (),
    flags: Mapping[str, Sequence[str]] | None = None,
    omitted: Sequence[str] = (),
) -> Callable[..., None]:
    """A function for `typer.Typer.command`, with a parameter for each field of the settings.

    Args:
        settings: As for `command`. What the command line leaves out is left to the model, and so perhaps
            to the environment.
        work: What the command does with them, and with the `obj` that its program was called with.
        errors: Entered around it.
        positional: Fields that are given by their place, without a name.
        flags: Options of fields that are not called as the field is, or have a short form.
        omitted: Fields that have no option.
    """
    import typer

    def command(**values: Any) -> None:
        context: typer.Context = values.pop(_CONTEXT)
        sources = {name: context.get_parameter_source(name) for name in values}
        given = {
            name: values[name] for name, source in sources.items() if source and source.name != "DEFAULT"
        }
        with errors():
            try:
                read = settings(**given)
            except ValidationError as error:
                raise typer.BadParameter(_complaints(error)) from error
            work(read, context.obj)

    parameters = [inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    inherited_last = sorted(settings.model_fields, key=lambda name: name not in settings.__annotations__)
    for name in inherited_last:
        field = settings.model_fields[name]
        if name in omitted:
            continue
        default = inspect.Parameter.empty if field.is_required() else field.default
        default = None if isinstance(default, dict) else default
        option = typer.Option(*(flags or {}).get(name, ()), help=field.description)
        if name in positional:
            option = typer.Argument(help=field.description)
        annotation = Annotated[_option_type(field.annotation), option]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010 - pyright knows no such attribute
    return command


def _option_type(annotation: Any) -> Any:
    """The type that typer reads: lists of simple types; what it does not know is text, left to pydantic."""
    origin = get_origin(annotation)
    if origin is tuple:
        element = get_args(annotation)[0]
        return list[str] if get_origin(element) else list[element]
    return str | None if origin is dict else annotation


def _complaints(error: ValidationError) -> str:
    wrong = (f"--{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
    return "; ".join(wrong).replace("_", "-")


@contextmanager
def _ending(resumes: bool) -> Generator[None]:
    try:
        yield
    except PastaError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted" + "; the same command goes on" * resumes + "\n")
        sys.exit(130)


@contextmanager
def reported_errors() -> Generator[None]:
    """For users of `pasta-async`: errors in words only, and status 2 for what they typed wrong.

    A reader of standard output that has left is for typer, which then ends quietly.
    """
    try:
        yield
        _flush()  # what fails only now is told here, too
    except BrokenPipeError:
        raise
    except OSError as error:
        try:
            _flush()
        except OSError:  # forget what standard output does not take, or Python fails over it again as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(str(error))
    except (PastaError, ModuleNotFoundError) as error:
        fail(str(error), code=2 if isinstance(error, InvalidRequestError) else 1)
    except KeyboardInterrupt:
        fail("interrupted", code=130)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def say(message: str) -> None:
    """Tell the user of `pasta-async` something on stderr."""
    sys.stderr.write(f"pasta-async: {message}\n")


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Say what is wrong and leave."""
    say(message)
    sys.exit(code)


def require_stdout() -> None:
    """Leave in words where there is no standard output to print on."""
    if sys.stdout is None:
        fail("standard output is closed")


def read_text(name: str) -> str:
    """The text of a file; `-` is standard input."""
    if name == "-" and sys.stdin is None:
        fail("-: standard input is closed")
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        fail(f"{name}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        fail(f"{name}: not UTF-8 at byte {error.start}")
