"""Offers that chunks add up, and a comparison behind the sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.training.synthetic import words
from pasta_async.training.synthetic.names import make_names
from pasta_async.training.synthetic.writing import Draft, Plan, Template, listed, say

if TYPE_CHECKING:
    import random

__all__ = ["FACTS", "FRAMES", "HELD_OUT_FRAMES", "draft"]

FRAMES = (
    "Which offer is cheaper? {facts}",
    "{facts} Which offer is cheaper?",
    "Compare the offers of {names}. {facts}",
    "Compare these offers. {facts}",
    "{facts} Please compare the offers.",
    "{facts} Where should I buy?",
    "I need some things for a trip. {facts} Where should I buy them?",
    "Where do I pay less? {facts}",
    "{facts} Where do I pay less?",
    "Who is cheaper, {names}? {facts}",
    "We compare the shops {names}. {facts} Which one is the best?",
    "{facts} Who has the best price?",
    "Who has the best price? {facts}",
    "Please find the best offer. {facts}",
    "{facts} Find the best offer for me.",
    "Add up the prices and compare them. {facts}",
    "{facts} Add up the prices and tell me who is cheaper.",
    "I have offers from {names}. {facts} Which one is better?",
    "Help me choose a shop. {facts}",
    "{facts} Help me choose between {names}.",
    "Can you compare the prices of {names}? {facts}",
    "My friends need these things. {facts} Which shop should they choose?",
)
HELD_OUT_FRAMES = (
    "Can you find the best price? {facts}",
    "I need some things. {facts} Which offer is the best?",
    "Please compare the prices of the shops {names}. {facts}",
    "{facts} Can you tell me where I pay less?",
    "Help me find the best offer. {facts} Who is cheaper?",
)
FACTS = (
    ("{n} asks {a} coins for the {x}, {b} for the {y} and {c} for the {z}.", False),
    ("{n} sells the {x} for {a} coins, the {y} for {b} and the {z} for {c}.", False),
    ("{n}: {x} {a} coins, {y} {b} coins, {z} {c} coins", True),
    ("At {n} the {x} costs {a} coins, the {y} {b} and the {z} {c}.", False),
    ("{n} wants {a} coins for the {x}, {b} coins for the {y} and {c} coins for the {z}.", False),
)


def draft(rng: random.Random, template: Template, held_out_names: bool) -> Draft:
    """Draw an example."""
    count = rng.choice((2, 2, 3))
    names = make_names(rng, count, held_out_names)
    x, y, z = rng.sample(words.GOODS, 3)
    prices = _prices(rng, count)
    plan = Plan("\n- " if template.as_list else " ")
    plan.say("Let us compare the prices.")
    facts: list[dict[str, object]] = []
    for name, (a, b, c) in zip(names, prices, strict=True):
        facts.append({"n": name, "a": a, "b": b, "c": c, "x": x, "y": y, "z": z})
        plan.promise(
            name,
            say("{n} asks {a} for the {x}.", n=name, a=a, x=x),
            say("The {y} for {b} makes it {s}.", b=b, y=y, s=a + b),
            say("The {z} for {c} makes it {s}.", c=c, z=z, s=a + b + c),
            say("So the price of {n} is {s} coins.", n=name, s=a + b + c),
        )
    plan.sync()
    sums = [sum(price) for price in prices]
    for name, price in zip(names, sums, strict=True):
        plan.say("{n} asks {s}.", n=name, s=price)
    cheapest = min(sums)
    plan.say("The best price is {s}, so choose {n}.", s=cheapest, n=names[sums.index(cheapest)])
    return Draft(template.fill(facts, names=listed(names)), plan, names)


def _prices(rng: random.Random, count: int) -> list[tuple[int, int, int]]:
    """Three prices a shop; one shop alone is the cheapest."""
    while True:
        prices = [(rng.randint(2, 7), rng.randint(2, 7), rng.randint(2, 7)) for _ in range(count)]
        sums = sorted(sum(price) for price in prices)
        if sums[0] < sums[1]:
            return prices
