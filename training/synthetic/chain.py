"""A chain in which each step needs the one before: parallel is wrong, and the answer has no promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.training.synthetic import words
from pasta_async.training.synthetic.names import make_names
from pasta_async.training.synthetic.writing import Draft, Plan, Template, listed

if TYPE_CHECKING:
    import random

__all__ = ["FACTS", "FRAMES", "HELD_OUT_FRAMES", "draft"]

FRAMES = (
    "A {vessel} holds {start} {things}. {facts} How many {things} are in the {vessel} now?",
    "There are {start} {things} in a {vessel}. {facts} How many are there now?",
    "My {vessel} holds {start} {things}. {facts} How many are left?",
    "{start} {things} are in a {vessel}. {facts} What is in it now?",
    "How many {things} are in the {vessel} in the end? It starts with {start}. {facts}",
    "A {vessel} starts with {start} {things}. {facts} Follow the steps.",
    "A {vessel} starts with {start} {things}. {facts} How many are there in the end?",
    "Follow the {things} step by step. The {vessel} starts with {start}. {facts}",
    "Step by step, how many {things} are in the {vessel}? It holds {start}. {facts}",
    "We put {start} {things} in a {vessel}. {facts} Count them step by step.",
    "{names} share a {vessel} with {start} {things}. {facts} How many are left?",
    "{names} play with a {vessel} of {start} {things}. {facts} What is the number in the end?",
    "Please follow what happens to {start} {things} in a {vessel}. {facts}",
    "I have {start} {things} in my {vessel}. {facts} How many {things} do I have now?",
    "The {vessel} on my table holds {start} {things}. {facts} Tell me what is left.",
    "The {vessel} has {start} {things}. {facts} Please tell me the number after each step.",
    "At first a {vessel} has {start} {things}. {facts} And now?",
    "At first there are {start} {things} in the {vessel}. {facts} How many are there in the end?",
    "Keep track of a {vessel} with {start} {things}. {facts}",
    "Please keep track of the {things}. The {vessel} has {start}. {facts}",
    "Can you keep track of my {things}? The {vessel} holds {start}. {facts}",
    "Hello! My {vessel} has {start} {things}. {facts} What is the number now?",
)
HELD_OUT_FRAMES = (
    "Hello! There are {start} {things} in my {vessel}. {facts} How many do I have now?",
    "Please count the {things} step by step. The {vessel} starts with {start}. {facts}",
    "{names} share a {vessel} of {start} {things}. {facts} How many are there in the end?",
    "Can you follow the {things}? At first the {vessel} holds {start}. {facts}",
    "I put {start} {things} in a {vessel}. {facts} Tell me the number after each step.",
)
FACTS = (
    ("{n} {does} {k}.", False),
    ("Then {n} {does} {k}.", False),
    ("{n} {does} {k}", True),
    ("{n} comes and {does} {k}.", False),
    ("{n} {does} {k} {things}.", False),
)


def draft(rng: random.Random, template: Template, held_out_names: bool) -> Draft:
    """Draw an example."""
    names = make_names(rng, rng.choice((3, 4, 4, 5)), held_out_names)
    vessel, things = rng.choice(words.VESSELS), rng.choice(words.HOLDERS)
    left = start = rng.randint(4, 15)
    plan = Plan("\n- " if template.as_list else " ")
    plan.say("The {v} starts with {s} {t}.", v=vessel, s=start, t=things)
    facts: list[dict[str, object]] = []
    for name in names:
        adds = left <= 4 or (left < 18 and rng.random() < 0.5)
        k = rng.randint(2, 6 if adds else min(6, left - 2))
        left += k if adds else -k
        facts.append({"n": name, "does": "adds" if adds else "takes", "k": k})
        plan.say("{n} {does} {k}, which makes {s}.", is_item=True, s=left, **facts[-1])
    plan.say("In the end the {v} holds {s} {t}.", v=vessel, s=left, t=things)
    slots = {"vessel": vessel, "things": things, "start": start}
    return Draft(template.fill(facts, names=listed(names), **slots), plan, names)
