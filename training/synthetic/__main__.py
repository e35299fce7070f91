"""Write examples of the synthetic task as records: `python -m pasta_async.training.synthetic`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.cli.command import ending
from pasta_async.training.corpus import write_records
from pasta_async.training.corpus.tokens import token_counter
from pasta_async.training.synthetic import FAMILIES, Split
from pasta_async.training.synthetic.records import Annotator, draw_records
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


class SyntheticSettings(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    out: Path = Field(description="file to write, JSON lines")
    count: int = Field(default=1000, ge=1, description="how many examples")
    seed: int = Field(default=0, description="another seed draws others")
    split: Split = Field(default="train", description="train, names or templates: which are held out")
    families: tuple[str, ...] = Field(default=FAMILIES, description="kinds of prompts")
    annotator: Annotator = Field(default="maker", description="who puts in the tags: maker, looks or nobody")
    tokenizer: Path | None = Field(
        default=None, description="model folder whose tokenizer counts the estimates (default: a rough count)"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason."""
    settings = read_command_line(SyntheticSettings, "pasta_async.training.synthetic", __doc__, argv)
    with ending(ValueError):
        count = None if settings.tokenizer is None else token_counter(settings.tokenizer)
        records = draw_records(
            settings.count, settings.seed, settings.split, settings.families, count, settings.annotator
        )
        written = write_records(settings.out, records)
    print(f"{written} records in {settings.out}")


if __name__ == "__main__":
    main()
