"""An invitation: main writes text between its promises and a last line without waiting for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.training.synthetic import words
from pasta_async.training.synthetic.names import make_names
from pasta_async.training.synthetic.writing import Draft, Plan, Template, listed, say

if TYPE_CHECKING:
    import random

__all__ = ["FACTS", "FRAMES", "HELD_OUT_FRAMES", "draft"]

FRAMES = (
    "Write an invitation to the fair in {town} on day {day}. {facts}",
    "Invite my friends to the fair in {town} on day {day}. {facts}",
    "Please write an invitation. The fair in {town} is on day {day}. {facts}",
    "The fair in {town} is on day {day}. {facts} Write an invitation.",
    "The fair in {town} is on day {day}. {facts} Please invite everyone.",
    "On day {day} there is a fair in {town}. {facts} Invite everyone.",
    "On day {day} we hold a fair in {town}. {facts} Please write the invitation.",
    "I plan a fair in {town} on day {day}. {facts} Can you write an invitation?",
    "We plan a fair in {town} on day {day} with {names}. {facts} Write about it.",
    "{facts} Invite everyone to the fair in {town} on day {day}.",
    "{facts} They meet at the fair in {town} on day {day}. Write an invitation.",
    "Tell our readers about the fair in {town} on day {day}. {facts}",
    "Our town {town} has a fair on day {day}. {facts} Tell everyone.",
    "Write a short text about the fair in {town} on day {day}. {facts}",
    "Make an invitation for the fair on day {day} in {town}. {facts}",
    "We need an invitation for the fair in {town} on day {day}. {facts}",
    "Come to {town} on day {day}! {facts} Turn this into an invitation.",
    "Here are my notes on the fair in {town} on day {day}. {facts} Write an invitation.",
    "Present the fair in {town} on day {day}. {names} have stalls. {facts}",
    "{names} have stalls at the fair in {town} on day {day}. {facts} Write an invitation.",
    "Can you invite everyone to the fair in {town} on day {day}? {facts}",
    "Hello! There is a fair in {town} on day {day}. {facts} Please present it.",
)
HELD_OUT_FRAMES = (
    "Hello! We hold a fair in {town} on day {day}. {facts} Can you write an invitation?",
    "Tell my friends about the fair in {town} on day {day}. {facts}",
    "Please present the fair on day {day} in {town}. {facts}",
    "There is a fair on day {day} in {town}. {facts} Invite our readers.",
    "{facts} They have stalls at the fair in {town} on day {day}. Tell everyone.",
)
FACTS = (
    ("{n} sells {color} {goods} for {c} coins at gate {g} and {treat} on the side.", False),
    ("{n} is at gate {g} and sells {color} {goods} for {c} coins, and {treat} too.", False),
    ("{n}: gate {g}, {color} {goods}, {c} coins, {treat}", True),
    ("At gate {g}, {n} sells {color} {goods} for {c} coins and also {treat}.", False),
    ("{n} has {treat} and sells {color} {goods} for {c} coins at gate {g}.", False),
)
LINKS = ("First comes the stall of {n}.", "Then comes the stall of {n}.", "Last comes the stall of {n}.")


def draft(rng: random.Random, template: Template, held_out_names: bool) -> Draft:
    """Draw an example."""
    count = rng.choice((2, 3))
    *names, town = make_names(rng, count + 1, held_out_names)
    day = rng.randint(1, 30)
    plan = Plan("\n- " if template.as_list else "\n\n")
    plan.say("Come to the fair in {town}!", town=town)
    facts: list[dict[str, object]] = []
    for name, link in zip(names, (LINKS[0], *LINKS[3 - count + 1 :]), strict=True):
        fact: dict[str, object] = {
            "n": name,
            "color": rng.choice(words.COLORS),
            "goods": f"{rng.choice(words.KINDS)}s",
            "c": rng.randint(2, 30),
            "g": rng.randint(1, 20),
            "treat": rng.choice(words.TREATS),
        }
        facts.append(fact)
        plan.say(link, is_item=True, n=name)
        plan.promise(
            name,
            say("You find {n} at gate {g}.", **fact),
            say("Look at the {color} {goods} that cost {c} coins.", **fact),
            say("You will also like the {treat} of {n}.", **fact),
            is_item=False,
        )
    plan.say("We meet on day {day}.", day=day)
    return Draft(template.fill(facts, names=listed(names), town=town, day=day), plan, [*names, town])
