"""The settings of every command that reads prompts with their answers."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.training.corpus.leakage import LeakageFilter
from pasta_async.training.corpus.sources import read_prompts, read_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pasta_async.training.corpus.record import Record

__all__ = ["SourceSettings"]


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
            InvalidRequestError: The data or the evaluation prompts cannot be read.
        """
        kept_out = LeakageFilter(tuple(prompt for path in self.against for prompt in read_prompts(path)))
        records = read_source(self.data, split=self.split, limit=self.limit, prompts=self.prompts)
        return kept_out.keep(records), kept_out
