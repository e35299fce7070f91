"""Draw prompts for a round from a file of records: `python -m pasta_async.training.recipe.draw`."""

from __future__ import annotations

import random
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.cli.command import ending
from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import read_records, write_records
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DrawSettings", "draw", "main"]


class DrawSettings(BaseModel):
    """What to draw. Every field is a flag of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    data: Path = Field(description="file of records, JSON lines")
    out: Path = Field(description="file to write")
    count: int = Field(ge=1, description="how many")
    skip: int = Field(default=0, ge=0, description="how many were drawn before, by other rounds")
    seed: int = Field(default=0, description="another seed draws in another order")


def draw(settings: DrawSettings) -> int:
    """Write records in an order drawn by the seed, without the first `skip`; returns how many there are.

    Raises:
        InvalidRequestError: The data cannot be read, or there are too few.
    """
    records = list(read_records(settings.data))
    last = settings.skip + settings.count
    if last > len(records):
        raise InvalidRequestError(
            f"{settings.data} has {len(records)} records, and prompts up to {last} are wanted"
        )
    random.Random(settings.seed).shuffle(records)
    return write_records(settings.out, records[settings.skip : last])


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason."""
    settings = read_command_line(DrawSettings, "pasta_async.training.recipe.draw", __doc__, argv)
    with ending():
        drawn = draw(settings)
    print(f"{drawn} records in {settings.out}")


if __name__ == "__main__":
    main()
