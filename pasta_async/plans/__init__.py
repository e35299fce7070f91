"""Plans: the developer says which parts of an answer see which others. Independent parts run in parallel.

    class Review(BaseModel):
        strengths: Annotated[list[str], Field(max_length=4)]
        stars: Annotated[int, Field(ge=1, le=5), After("strengths")]

    filled = await client.fill("Review of the hotel: ...", Review)

docs/plans.md describes them.
"""

from pasta_async.plans.checks import Bounds, Finding, InvalidPlanError, PlanCode, PlanReport
from pasta_async.plans.events import (
    FieldDelta,
    FieldDone,
    FieldStarted,
    FillDone,
    Filled,
    FillEvent,
    ValidationFailedError,
)
from pasta_async.plans.plan import After, Plan, Together, Tokens
from pasta_async.plans.run import FillStream

__all__ = [
    "After",
    "Bounds",
    "FieldDelta",
    "FieldDone",
    "FieldStarted",
    "FillDone",
    "FillEvent",
    "FillStream",
    "Filled",
    "Finding",
    "InvalidPlanError",
    "Plan",
    "PlanCode",
    "PlanReport",
    "Together",
    "Tokens",
    "ValidationFailedError",
]
