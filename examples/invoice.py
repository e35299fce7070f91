"""Extraction: the fields of an invoice, each in a thread of its own, except for two that belong together.

python examples/invoice.py
"""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, Field

import pasta_async
from pasta_async import After, Together, Tokens

INVOICE = """\
Invoice 2024-117, issued on 5 March 2024 by Miller & Sons, 12 Harbour Road, Bristol.
4 office chairs at 80.00 GBP each, 1 desk at 250.00 GBP. Total 570.00 GBP, to be paid by 4 April 2024."""


class Line(BaseModel):
    """An item that was sold."""

    item: Annotated[str, Field(max_length=40)]
    count: Annotated[int, Field(ge=1, le=1000)]
    price: Annotated[float, Field(ge=0)]


class Invoice(BaseModel):
    """The fields that the accounts need. Total and currency belong together; the rest is independent."""

    number: Annotated[str, Field(max_length=20)]
    issued: date
    due: date
    seller: Annotated[str, Tokens(20)]
    lines: Annotated[list[Line], Field(min_length=1, max_length=5), Tokens(150)]
    total: Annotated[float, Field(ge=0), Together("sum"), After("lines")]
    currency: Annotated[Literal["GBP", "EUR", "USD"], Together("sum")]


async def main() -> None:
    """Check the plan, then fill it."""
    async with pasta_async.Client() as client:
        print(await client.check(Invoice))
        filled = await client.fill(f"Extract the data of this invoice.\n\n{INVOICE}", Invoice)
    print(filled.value.model_dump_json(indent=1))
    print(f"{filled.critical_path} of {filled.usage.completion_tokens} tokens one after another")


asyncio.run(main())
