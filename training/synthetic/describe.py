"""Independent descriptions of things: every chunk needs the prompt alone, so parallel is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.training.synthetic import words
from pasta_async.training.synthetic.names import make_names
from pasta_async.training.synthetic.writing import Draft, Plan, Template, listed, say

if TYPE_CHECKING:
    import random

__all__ = ["FACTS", "FRAMES", "HELD_OUT_FRAMES", "draft"]

FRAMES = (
    "Describe the {kinds} {names}. {facts}",
    "Write about the {kinds} {names}. {facts}",
    "Please describe these {kinds}. {facts}",
    "Tell me about the {kinds} {names}. {facts}",
    "{facts} Describe these {kinds}.",
    "{facts} Write a short text about each of the {kinds}.",
    "I sell {kinds}. {facts} Please describe each one.",
    "We have some {kinds}. {facts} Can you describe them?",
    "Here are my notes on some {kinds}. {facts} Turn them into a text.",
    "Write a page for our shop about the {kinds} {names}. {facts}",
    "Introduce the {kinds} {names} to our readers. {facts}",
    "Could you introduce these {kinds}? {facts}",
    "Present the {kinds} {names}. {facts} Thank you!",
    "My friends ask about the {kinds} {names}. {facts} What can I tell them?",
    "{facts} Please present the {kinds} {names}.",
    "{facts} Tell our readers about the {kinds}.",
    "Give a short description of each of the {kinds} {names}. {facts}",
    "Make a list of {kinds} with a description of each. {facts}",
    "I want to know more about these {kinds}. {facts}",
    "What are the {kinds} {names} like? {facts}",
    "Our shop has new {kinds}. {facts} Write a text about them.",
    "Hello! {facts} Please write about these {kinds}.",
)
HELD_OUT_FRAMES = (
    "Hello! Please introduce the {kinds} {names}. {facts}",
    "Can you write a short description of these {kinds}? {facts}",
    "{facts} Please tell me about the {kinds} {names}.",
    "Our readers ask about some {kinds}. {facts} Describe each one.",
    "Write a short text for my friends about the {kinds} {names}. {facts} Thank you!",
)
FACTS = (
    ("{n} is {color}, comes from {place}, weighs {w} kilos and is good for {use}.", False),
    ("{n} is {color}, weighs {w} kilos, is good for {use} and comes from {place}.", False),
    ("{n}: {color}, from {place}, {w} kilos, good for {use}.", True),
    ("{n} comes from {place}. It is {color}, weighs {w} kilos and is good for {use}.", False),
    ("{n}, {color}, {w} kilos, made in {place}, used for {use}", True),
    ("{n} weighs {w} kilos, is {color} and comes from {place}. It is used for {use}.", False),
)


def draft(rng: random.Random, template: Template, held_out_names: bool) -> Draft:
    """Draw an example."""
    count = rng.choice((2, 2, 2, 3, 3, 3, 4))
    names = make_names(rng, 2 * count, held_out_names)
    kind = rng.choice(words.KINDS)
    facts: list[dict[str, object]] = [
        {
            "n": name,
            "color": rng.choice(words.COLORS),
            "place": place,
            "w": rng.randint(2, 40),
            "use": rng.choice(words.USES),
        }
        for name, place in zip(names[:count], names[count:], strict=True)
    ]
    plan = Plan("\n- " if template.as_list else "\n\n")
    plan.say("Here are the {kinds}.", kinds=f"{kind}s")
    for fact in facts:
        plan.promise(
            str(fact["n"]),
            say("{n} is a {color} {kind}.", kind=kind, **fact),
            say("It comes from {place} and weighs {w} kilos.", **fact),
            say("People like it for {use}.", **fact),
        )
    prompt = template.fill(facts, kinds=f"{kind}s", names=listed(names[:count]))
    return Draft(prompt, plan, names)
