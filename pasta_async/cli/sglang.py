"""`pasta-async sglang`: becomes an SGLang server."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Literal, cast

from pasta_async.backends.sglang.launch import server_command

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["become_server"]


def become_server(
    model: str, *, device: str | None, host: str, port: int, extra: Sequence[str], dry_run: bool
) -> None:
    """Print the server's command and the reason of each flag, then let it take this process's place.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: cuda, cpu, or None to look.
        host: Address to listen at.
        port: Port to listen at.
        extra: Further arguments of SGLang.
        dry_run: Print only, the command on stdout.

    Raises:
        ModuleNotFoundError: SGLang is not installed.
    """
    command = server_command(
        model, device=cast("Literal['cuda', 'cpu'] | None", device), host=host, port=port, extra=extra
    )
    width = max(map(len, command.reasons), default=0)
    for flag, reason in command.reasons.items():
        sys.stderr.write(f"{flag:{width}}  {reason}\n")
    (sys.stdout if dry_run else sys.stderr).write(shlex.join(command.argv) + "\n")
    if not dry_run:
        sys.stderr.flush()
        os.execv(command.argv[0], command.argv)
