"""Turn a file or a data set into the project's format: `python -m pasta_async.training.corpus`.

Prompts that would leak evaluation prompts into training are left out, and counted.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING

from pydantic import Field

from pasta_async.cli.command import run_command
from pasta_async.training.corpus.records import write_records
from pasta_async.training.corpus.sources import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CorpusSettings", "convert", "main"]


class CorpusSettings(SourceSettings):
    """What to read, and where to write. Every field is a flag of the command line."""

    out: Path = Field(description="file to write, JSON lines")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `run_command`, also for how it ends."""
    program = "pasta_async.training.corpus"
    run_command(CorpusSettings, convert, program=program, description=__doc__, arguments=argv)


def convert(settings: CorpusSettings) -> None:
    """Read, filter, write the file, and print the counts.

    Raises:
        InvalidRequestError: The data or the evaluation prompts cannot be read.
    """
    records, leaks = settings.read()
    written = write_records(settings.out, records)
    print(f"{written} records in {settings.out}; left out: {dict(leaks.counts)}")


if __name__ == "__main__":
    main()
