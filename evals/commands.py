"""What the benchmarks' command lines have in common: a few settings, and commands with sub-commands."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.cli.command import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Command", "Count", "DocumentSettings", "Positive", "Settings", "command", "run_sub_command"]

S = TypeVar("S", bound=BaseModel)
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Command(Protocol):
    """The `main` of a benchmark."""

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Read a command line (None: that of the process), do the work, end the process."""
        ...


class Settings(BaseModel):
    """Settings of a command; every field is an option of its command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class DocumentSettings(Settings):
    """Settings of a command that has given answers written."""

    documents: Path = Field(description="records (JSON lines) with prompts and written answers")
    first: int | None = Field(default=None, ge=1, description="take so many of them only")


def command(
    settings: type[S],
    work: Callable[[S], object],
    name: str,
    description: str | None,
    *,
    resumes: bool = False,
) -> Command:
    """The `main` of a benchmark: it takes a command line (None: that of the process) and ends the process.

    Args:
        settings: As for `run_command`.
        work: What it does; text that it gives back is printed.
        name: Name of the command, for the help.
        description: The module's docstring.
        resumes: Whether the same command goes on after Ctrl-C.
    """

    def print_result(given: S) -> None:
        if isinstance(found := work(given), str):
            print(found)

    def main(arguments: Sequence[str] | None = None) -> None:
        run_command(
            settings,
            print_result,
            program=name,
            description=description,
            arguments=arguments,
            resumes=resumes,
        )

    return main


def run_sub_command(
    commands: Mapping[str, Callable[[Sequence[str] | None], Any]], arguments: Sequence[str] | None = None
) -> None:
    """Run the command that the first argument names, with the others.

    Args:
        commands: Their `main`, by name.
        arguments: The command line; None: that of the process.

    Raises:
        SystemExit: What the command ends with; 2 if there is no such command.
    """
    name, *others = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name not in commands:
        sys.stderr.write(f"name one of these, and --help for its options: {', '.join(commands)}\n")
        sys.exit(0 if name == "--help" else 2)
    commands[name](others)
