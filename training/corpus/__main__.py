"""Turn a file or a data set into the project's format: `python -m pasta_async.training.corpus`.

Prompts that would leak evaluation prompts into training are left out, and counted.
"""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.errors import PastaError
from pasta_async.training.corpus import LeakageFilter, read_prompts, read_source, write_records
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.training.corpus import Record

__all__ = ["SourceSettings", "main"]


class SourceSettings(BaseModel):
    """What to read. Every field is a flag of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    data: str = Field(description="a file of prompts and answers, the folder of a data set, or its name")
    split: str = Field(default="train", description="split of a data set")
    limit: int | None = Field(default=None, ge=1, description="read no more rows than this")
    prompts: Path | None = Field(
        default=None, description="file with the prompts of rows that hold answers alone, in the same order"
    )
    against: tuple[Path, ...] = Field(
        default=(), description="files of evaluation prompts to keep out of the data"
    )

    def read(self) -> tuple[Iterator[Record], LeakageFilter]:
        """The records that leak nothing, and the filter that counts the others.

        Raises:
            InvalidRequest: The data or the evaluation prompts cannot be read.
        """
        kept_out = LeakageFilter(tuple(prompt for path in self.against for prompt in read_prompts(path)))
        records = read_source(self.data, split=self.split, limit=self.limit, prompts=self.prompts)
        return kept_out.keep(records), kept_out


class _Settings(SourceSettings):
    out: Path = Field(description="file to write, JSON lines")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason."""
    settings = read_command_line(_Settings, "pasta_async.training.corpus", __doc__, argv)
    try:
        records, kept_out = settings.read()
        written = write_records(settings.out, records)
    except PastaError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(f"{written} records in {settings.out}; {kept_out.summary()}")


if __name__ == "__main__":
    main()
