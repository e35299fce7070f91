"""What the benchmarks' command lines have in common: a few settings, and commands with sub-commands."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import Command, Count, Positive, command
from pasta_async.cli.command import CommandSettings as Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Command", "Count", "DocumentSettings", "Positive", "Settings", "command", "run_sub_command"]


class DocumentSettings(Settings):
    """Settings of a command that has given answers written."""

    documents: Path = Field(description="records (JSON lines) with prompts and written answers")
    first: int | None = Field(default=None, ge=1, description="take so many of them only")


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
