"""The command line: the commands of `pasta-async`."""

from pasta_async.cli.commands import main

__all__ = ["main"]
