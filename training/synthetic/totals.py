"""Sub-totals inside chunks and a total behind the sync that needs them: a sync is necessary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.training.synthetic import words
from pasta_async.training.synthetic.names import make_names
from pasta_async.training.synthetic.writing import Draft, Plan, Template, listed, say

if TYPE_CHECKING:
    import random

__all__ = ["FACTS", "FRAMES", "HELD_OUT_FRAMES", "draft"]

FRAMES = (
    "How many fruits do {names} have in all? {facts}",
    "{facts} How many fruits do they have in all?",
    "{facts} How many fruits is that in all?",
    "Count the fruits of {names}. {facts}",
    "Please count the fruits. {facts}",
    "{facts} Please count all the fruits.",
    "{facts} Add up the fruits.",
    "Add up the fruits of {names}. {facts}",
    "{names} went to the market. {facts} How many fruits did they bring?",
    "We picked fruits today. {facts} What is the total?",
    "{facts} What is the total of fruits?",
    "What is the total? {facts}",
    "Some friends picked fruits. {facts} Count them for me.",
    "I need the number of fruits for each and for all. {facts}",
    "Find the total of the fruits of {names}. {facts}",
    "{facts} Find out how many fruits there are.",
    "Can you count the fruits of {names}? {facts}",
    "Can you add up the fruits? {facts}",
    "{facts} Tell me how many fruits each one has, and the total.",
    "Let us count fruits! {facts} How many are there?",
    "Help me count. {facts} How many fruits do {names} have?",
    "Work out the total number of fruits. {facts} Thank you!",
)
HELD_OUT_FRAMES = (
    "Can you find the total of the fruits? {facts}",
    "Some friends went to the market. {facts} How many fruits do they have in all?",
    "Please add up the fruits of {names}. {facts}",
    "{facts} Can you tell me the total number of fruits?",
    "Help me find out how many fruits {names} have. {facts} Thank you!",
)
FACTS = (
    ("{n} has {a} {x}, {b} {y} and {c} {z}.", False),
    ("{n} brings {a} {x}, {b} {y} and {c} {z}.", False),
    ("{n}: {a} {x}, {b} {y}, {c} {z}", True),
    ("{n} picked {a} {x}, {b} {y} and {c} {z}.", False),
    ("There are {a} {x}, {b} {y} and {c} {z} from {n}.", False),
)


def draft(rng: random.Random, template: Template, held_out_names: bool) -> Draft:
    """Draw an example."""
    count = rng.choice((2, 2, 3, 3, 3))
    names = make_names(rng, count, held_out_names)
    facts: list[dict[str, object]] = []
    sums: list[int] = []
    plan = Plan("\n- " if template.as_list else " ")
    plan.say("Let us count.")
    for name in names:
        a, b, c = (rng.randint(2, 6 if count == 2 else 5) for _ in range(3))
        x, y, z = rng.sample(words.FRUITS, 3)
        facts.append({"n": name, "a": a, "b": b, "c": c, "x": x, "y": y, "z": z})
        sums.append(a + b + c)
        plan.promise(
            name,
            say("{n} starts with {a} {x}.", n=name, a=a, x=x),
            say("With {b} {y} that makes {s}.", b=b, y=y, s=a + b),
            say("With {c} {z} that makes {s}.", c=c, z=z, s=a + b + c),
            say("So the count of {n} is {s}.", n=name, s=a + b + c),
        )
    plan.sync()
    total = sums[0]
    for term in sums[1:]:
        plan.say("Then {a} plus {b} is {s}.", a=total, b=term, s=total + term)
        total += term
    plan.say("The total is {s} fruits.", s=total)
    return Draft(template.fill(facts, names=listed(names)), plan, names)
