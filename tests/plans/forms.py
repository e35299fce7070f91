"""Forms that the tests of plans fill."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from pasta_async.plans import After, Plan, Tokens


class Review(BaseModel):
    """Fields that wait for others."""

    strengths: Annotated[list[str], Field(max_length=4), Tokens(40)]
    weaknesses: Annotated[list[str], Field(max_length=4), Tokens(40)]
    stars: Annotated[int, Field(ge=1, le=5), After("strengths", "weaknesses")]
    verdict: Annotated[str, Tokens(30), After("stars")]


class Section(BaseModel):
    """An item with a thread of its own."""

    heading: Annotated[str, Field(max_length=20), Tokens(10)]
    text: Annotated[str, After(), Tokens(20)]
    moral: Annotated[str, After("text"), Tokens(10)]


class Report(BaseModel):
    """A list whose items are written in parallel, behind an outline."""

    title: Annotated[str, Tokens(10)]
    sections: Annotated[list[Section], Field(min_length=2, max_length=4), Tokens(80), After("title")]
    summary: Annotated[str, After("sections"), Tokens(20)]


REVIEW_TEXT = Plan(
    "## Strengths\n{strengths}\n\n## Weaknesses\n{weaknesses}\n\nVerdict: {verdict}",
    strengths=Tokens(30),
    weaknesses=Tokens(30),
    verdict=(After("strengths", "weaknesses"), Tokens(20)),
)
