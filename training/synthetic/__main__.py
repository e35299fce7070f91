"""Write examples of the synthetic task as records: `python -m pasta_async.training.synthetic`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)

from pydantic import Field

from pasta_async.cli.command import Command, command
from pasta_async.training.corpus.records import StrictModel, write_records
from pasta_async.training.corpus.tokens import token_counter
from pasta_async.training.synthetic.families import FAMILIES, Family, Split
from pasta_async.training.synthetic.records import Annotator, draw_records

__all__ = ["SyntheticSettings", "export", "main"]


class SyntheticSettings(StrictModel):
    """What to draw. Every field is a flag of the command line."""

    out: Path = Field(description="file to write, JSON lines")
    count: int = Field(default=1000, ge=1, description="how many examples")
    seed: int = Field(default=0, description="another seed draws others")
    split: Split = Field(default="train", description="train, names or templates: which are held out")
    families: tuple[Family, ...] = Field(default=FAMILIES, description="kinds of prompts")
    annotator: Annotator = Field(
        default="maker", description="maker: the right tags; noisy: some wrong; nobody: no tags"
    )
    tokenizer: Path | None = Field(
        default=None, description="model folder whose tokenizer counts the estimates (default: a rough count)"
    )


def export(settings: SyntheticSettings) -> None:
    """Draw records, write the file, and print how many there are."""
    count = None if settings.tokenizer is None else token_counter(settings.tokenizer)
    records = draw_records(
        settings.count, settings.seed, settings.split, settings.families, count, settings.annotator
    )
    print(f"{write_records(settings.out, records)} records in {settings.out}")


main: Command = command(SyntheticSettings, export, "pasta_async.training.synthetic", __doc__)

if __name__ == "__main__":
    main()
