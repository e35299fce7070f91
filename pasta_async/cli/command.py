"""Command lines: options from the fields of settings, and endings with an exit code.

`pydantic_settings.CliApp` does not suit: it splits texts at commas and strips them, so that a stop text of a
comma and a space, or a prompt `null`, cannot be given.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from pasta_async.errors import InvalidRequestError, PastaError

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Command = Callable[..., None]
"""The `main` of a module: it reads a command line (None: that of the process), and ends the process."""


class CommandSettings(BaseModel):
    """Settings of a command; every field is an option of its command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


def command(
    settings: type[S],
    work: Callable[[S], object],
    program: str,
    description: str | None,
    *,
    positional: Sequence[str] = (),
    resumes: bool = False,
) -> Command:
    """Make the `main` of a module: it reads settings from the command line and does the work.

    It always ends the process: with status 0, as `reported_errors` says, or with 130 where the work returns
    False: it is unfinished.

    Args:
        settings: See `add_options`.
        work: The work; a coroutine is run. Text that it returns is printed, a dict as JSON.
        program: Name of the command, for the help.
        description: The module's docstring, for the help.
        positional: See `add_options`.
        resumes: True if the same command goes on where Ctrl-C ended it, which the message then says; where
            settings have an optional `out`, only with it.
    """

    def main(arguments: Sequence[str] | None = None) -> None:
        formatter = RawDescriptionHelpFormatter
        parser = ArgumentParser(
            program, description=description, allow_abbrev=False, formatter_class=formatter
        )
        add_options(parser, settings, positional)
        parser.set_defaults(parser=parser)
        options = settings_of(settings, parser.parse_args(arguments))
        goes_on = resumes and getattr(options, "out", "") is not None
        with reported_errors(program, "interrupted; the same command goes on" if goes_on else "interrupted"):
            result = work(options)
            if inspect.iscoroutine(result):
                result = run_coroutine(result)
            if isinstance(result, dict):
                result = json.dumps(result, indent=1)
            if isinstance(result, str):
                sys.stdout.write(result + "\n")
        sys.exit(130 if result is False else 0)

    return main


@contextmanager
def reported_errors(program: str, interrupted: str = "interrupted") -> Generator[None]:
    """End the process after an error, with a message instead of a traceback.

    The status is 2 for a value that is refused, 130 after Ctrl-C, else 1. If the reader of standard output
    has gone, there is no message.

    Args:
        program: Name of the command, with which a message begins.
        interrupted: The message after Ctrl-C.
    """
    try:
        yield
        sys.stdout.flush()  # an error of the last output is reported here, too
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # drop the rest of the output: Python would write it again, and fail, as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"{program}: {error}\n")
        sys.exit(1)
    except (PastaError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        sys.exit(2 if isinstance(error, InvalidRequestError) else 1)
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: {interrupted}\n")
        sys.exit(130)


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, as `asyncio.run` does. Ctrl-C cancels it at once.

    Raises:
        KeyboardInterrupt: It was cancelled by Ctrl-C.
    """

    async def woken_by_signals() -> T:
        # The loop sees a signal that arrives just before it begins to wait only at its next event. With a
        # handler for any signal, every signal wakes it; the handler of this one does nothing.
        with suppress(AttributeError, NotImplementedError):  # not on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, lambda: None)
        return await work

    return asyncio.run(woken_by_signals())


def add_options(parser: ArgumentParser, settings: type[BaseModel], positional: Sequence[str] = ()) -> None:
    """Give a parser an option for each field of settings; secrets have none, since others could see them.

    A required field is a required option, a `tuple` may be given several times, a `bool` has a `--no-` form.

    Args:
        parser: Its namespace is for `settings_of`, which needs `set_defaults(parser=...)` as well.
        settings: The `description` of a field is the help; an alias is the option's name.
        positional: Fields that are given by their position, without a name.
    """
    for field_name, field in settings.model_fields.items():
        name = field.alias or field_name
        if "SecretStr" in str(field.annotation):
            continue
        if name in positional:
            parser.add_argument(name, help=_help(field))
            continue
        option: dict[str, Any] = {"default": SUPPRESS, "required": field.is_required(), "help": _help(field)}
        types = [field.annotation, *get_args(field.annotation)]  # the members of `X | None` as well
        if bool in types:
            option["action"] = BooleanOptionalAction
        elif get_origin(field.annotation) is tuple:
            option["action"] = "append"
        elif choices := [get_args(member) for member in types if get_origin(member) is Literal]:
            option["choices"] = choices[0]
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, **option)


def settings_of(settings: type[S], namespace: Namespace) -> S:
    """Settings from a parsed command line; bad values end the process with status 2.

    Options that are not given are left to the model, and so perhaps to the environment.
    """
    parser: ArgumentParser = namespace.parser
    names = {field.alias or name for name, field in settings.model_fields.items()}
    try:
        return settings(**{name: value for name, value in vars(namespace).items() if name in names})
    except ValidationError as error:
        parser.error("; ".join(_mistake(e["loc"], e["msg"]) for e in error.errors()))
    except InvalidRequestError as error:
        parser.error(str(error))


def _mistake(location: tuple[int | str, ...], message: str) -> str:
    """A bad option and the reason; where several options do not go together, the reason names them."""
    option = "--" + ".".join(map(str, location)).replace("_", "-") + ": "
    return (option if location else "") + message.removeprefix("Value error, ")


def _help(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split()).replace("%", "%%")
    default = None if field.is_required() or field.default_factory else field.default
    is_nothing = default is None or default is False or default in ((), "")  # 0 is a default like any other
    return text if is_nothing else f"{text} (default: {default})"
