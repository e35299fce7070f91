"""The command line: the commands of `pasta-async`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper

from pasta_async.protocol import Backend


def main(args: Sequence[str] | None = None, *, backend: Backend | None = None) -> None:
    """Run a command and leave the process with its exit code.

    The code is 0 when all is well, 1 for an error (in words on stderr), 2 for a misuse, 130 after Ctrl-C.

    Args:
        args: Command and options; None: those of the process.
        backend: Decodes instead of the one that `--backend` names; for tests without a model.

    Raises:
        SystemExit: Always.
    """
    from pasta_async.cli.commands import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a character that its encoding lacks must not end the answer
            stream.reconfigure(errors="replace")
    run(sys.argv[1:] if args is None else [*args], backend)
    sys.exit(0)
