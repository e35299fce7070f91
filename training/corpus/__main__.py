"""Turn a file or a data set into the project's format: `python -m pasta_async.training.corpus`.

Prompts that would leak evaluation prompts into training are left out, and counted.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING

from pydantic import Field

from pasta_async.cli.command import ending
from pasta_async.training.corpus import write_records
from pasta_async.training.corpus.settings import SourceSettings
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


class CorpusSettings(SourceSettings):
    out: Path = Field(description="file to write, JSON lines")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason."""
    settings = read_command_line(CorpusSettings, "pasta_async.training.corpus", __doc__, argv)
    with ending():
        records, kept_out = settings.read()
        written = write_records(settings.out, records)
    print(f"{written} records in {settings.out}; {kept_out.summary()}")


if __name__ == "__main__":
    main()
