"""How every command of the project reads its command line and how it ends."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pasta_async.errors import PastaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["ending", "run_command"]

S = TypeVar("S", bound=BaseModel)


def run_command(
    settings: type[S],
    work: Callable[[S], object],
    *,
    program: str,
    description: str | None,
    positional: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
    resumes: bool = False,
) -> None:
    """Read settings from the command line, do the work with them, and end the process as `ending` does.

    Args:
        settings: Every field is an option, `--its-name`; its `description` is the help. Required fields are
            required options, a `tuple` may be given several times, a `bool` has a `--no-` form.
        work: What the command does.
        program: Name of the command, for the help.
        description: What the command does, for the help: the module's docstring.
        positional: Fields that are given by their place, without a name.
        arguments: The command line; None: that of the process.
        resumes: Whether the same command goes on after Ctrl-C, which is then said.

    Raises:
        SystemExit: Always: 0, 1 for a `PastaError`, 2 for a misuse, 130 after Ctrl-C.
    """
    import typer

    def command(**values: Any) -> None:
        given = {name: value for name, value in values.items() if value not in (None, [])}
        try:
            read = settings.model_validate(given)
        except ValidationError as error:
            raise typer.BadParameter(_complaints(error)) from error
        with ending(resumes=resumes):
            work(read)

    parameters: list[inspect.Parameter] = []
    for name, field in settings.model_fields.items():
        default = inspect.Parameter.empty if field.is_required() else field.default
        default = None if isinstance(default, dict) else default
        form = typer.Argument if name in positional else typer.Option
        annotation = Annotated[_option_type(field.annotation), form(help=field.description)]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010 - pyright knows no such attribute
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=description)(command)
    app(args=None if arguments is None else list(arguments), prog_name=program)


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
def ending(*also: type[Exception], resumes: bool = False) -> Generator[None]:
    """Run a command in this: its errors end the process with a line on stderr instead of a traceback.

    A `PastaError` ends the process with status 1 and its name and message on stderr, Ctrl-C with status 130.

    Args:
        also: Other errors that are reported in the same way.
        resumes: Whether the same command goes on after Ctrl-C, which is then said.

    Raises:
        SystemExit: In place of these.
    """
    try:
        yield
    except (PastaError, *also) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted" + "; the same command goes on" * resumes + "\n")
        sys.exit(130)
