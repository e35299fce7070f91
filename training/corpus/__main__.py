"""Turn a file or a data set into the project's format: `python -m pasta_async.training.corpus`.

Prompts that would leak evaluation prompts into training are left out, and counted.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)

from pydantic import Field

from pasta_async.cli.command import Command, command
from pasta_async.training.corpus.records import write_records
from pasta_async.training.corpus.sources import SourceSettings

__all__ = ["CorpusSettings", "convert", "main"]


class CorpusSettings(SourceSettings):
    """What to read, and where to write. Every field is a flag of the command line."""

    out: Path = Field(description="file to write, JSON lines")


def convert(settings: CorpusSettings) -> None:
    """Read, filter, write the file, and print the counts.

    Raises:
        InvalidRequestError: The data or the evaluation prompts cannot be read.
    """
    records, leaks = settings.read()
    written = write_records(settings.out, records)
    print(f"{written} records in {settings.out}; left out: {dict(leaks.counts)}")


main: Command = command(CorpusSettings, convert, "pasta_async.training.corpus", __doc__)

if __name__ == "__main__":
    main()
