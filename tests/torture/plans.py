"""Random forms, filled by a backend that writes at random whatever their grammars allow."""

from __future__ import annotations

from tests.plans.forms import KINDS, draw_form, keep_promise
from tests.torture.plan import Figures, Plan


async def fill_forms(plan: Plan) -> Figures:
    """Fill forms; each that `check` says yes to has to become a valid object within the bounds."""
    outcomes = {"filled": 0, "refused": 0}
    for number in plan.numbers():
        drawn = plan.random("plans", number)
        form, endless, kinds = draw_form(drawn), drawn.random() < 0.5, drawn.choice(KINDS)
        try:
            promised = await keep_promise(form, number, endless=endless, kinds=kinds)
        except Exception as error:
            raise AssertionError(f"plans item {number}: {form}") from error
        outcomes["filled" if promised else "refused"] += 1
    return outcomes
