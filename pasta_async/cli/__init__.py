"""The command line: the commands of `pasta-async`. Needs the extra `cli`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from pasta_async.errors import missing_extra
from pasta_async.protocol import Backend


def main(args: Sequence[str] | None = None, *, backend: Backend | None = None) -> None:
    """Run a command and leave the process with its exit code.

    The code is 0 when all is well, 1 for an error (in words on stderr), 2 for a misuse, 130 after Ctrl-C.

    Args:
        args: Command and options; None: those of the process.
        backend: Decodes instead of what `--backend` names; for tests without a model.

    Raises:
        SystemExit: Always.
    """
    try:
        from pasta_async.cli.app import app
    except ModuleNotFoundError as error:
        if error.name != "typer":  # which brings rich
            raise
        sys.exit(f"pasta-async: {missing_extra('the command line', 'cli', error)}")
    except KeyboardInterrupt:
        sys.exit(130)
    if sys.stderr is None:  # what would be told is told to nobody, and ends no answer
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a character that it does not have must not end the answer
            stream.reconfigure(errors="replace")
    app(args=None if args is None else list(args), prog_name="pasta-async", obj=backend)
