"""The five families of the synthetic task, and the open vocabulary of names that they use.

`task.toml` has their wording: a family's frames (how a user asks), those that are held out, the forms of a
fact, and the words that are drawn from.
"""

from __future__ import annotations

import random
import tomllib
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pasta_async.training.synthetic.examples import Draft, Example, Plan, Split, Template, listed, say

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAMILIES", "SYLLABLES", "WORDS", "is_held_out", "make_name", "make_names", "sample", "templates"]

_TASK: dict[str, Any] = tomllib.loads(Path(__file__).with_name("task.toml").read_text(encoding="utf-8"))
WORDS: dict[str, tuple[str, ...]] = {name: tuple(words) for name, words in _TASK["words"].items()}
"""The closed vocabulary, by kind: colors, kinds, ..., openings, closings."""

_ONSETS = "b c d f g h j k l m n p r s t v w y z br ch dr gr kr pl sh st tr".split()
_VOWELS = "aeiou"
_CODAS = "bdklmnprst"
SYLLABLES: tuple[str, ...] = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
"""Open syllables, each one token (small and capitalised) of the shipped model."""


@cache
def templates(family: str, split: Split) -> tuple[Template, ...]:
    """The templates that a split draws from; those of `templates` are in no other split."""
    wording = _TASK["families"][family]
    frames = wording["held_out_frames" if split == "templates" else "frames"]
    return tuple(Template(frame, **fact) for frame in frames for fact in wording["facts"])


def sample(
    family: str,
    seed: int,
    split: Split = "train",
    count_tokens: Callable[[str], int] | None = None,
) -> Example:
    """Draw one example.

    Args:
        family: One of `FAMILIES`.
        seed: The same seed, family and split always give the same example.
        split: Which names and which templates.
        count_tokens: Measures a chunk for its estimate; by default a rough count of words and syllables.

    Raises:
        ValueError: There is no such family or split.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    if split not in get_args(Split):
        raise ValueError(f"no split {split!r}; there are {', '.join(get_args(Split))}")
    rng = random.Random(f"{family}/{split}/{seed}")
    template = rng.choice(templates(family, split))
    if split != "templates":
        template = _with_small_talk(rng, template)
    draft = _DRAFTS[family](rng, template, split == "names")
    return Example(
        family=family,
        split=split,
        seed=seed,
        prompt=draft.prompt,
        document=draft.plan.document(count_tokens or _rough_count),
        facts=draft.plan.facts,
        names=tuple(draft.names),
    )


def _with_small_talk(rng: random.Random, template: Template) -> Template:
    """Words around the request: with a few dozen bare frames, a model learns where in each a fact stands."""
    opening = rng.choice(WORDS["openings"]) if rng.random() < 0.5 else ""
    closing = rng.choice(WORDS["closings"]) if rng.random() < 0.5 else ""
    return replace(template, opening=opening, closing=closing)


def _rough_count(text: str) -> int:
    """About as many tokens as the shipped tokenizer makes of an answer (it has 1.3 a word)."""
    return int(1.4 * len(text.split()))


# --- names


def is_held_out(name: str) -> bool:
    """Whether a name is kept out of training: one combination of syllables in ten, by its checksum."""
    return zlib.crc32(name.encode()) % 10 == 0


def make_name(rng: random.Random, held_out: bool) -> str:
    """Make a name, such as "Kelora", from the training names or from the held-out ones."""
    while True:
        name = (_regular(rng) if rng.random() < 0.75 else _irregular(rng)).capitalize()
        if is_held_out(name) == held_out and len(name) >= 3:
            return name


def make_names(rng: random.Random, count: int, held_out: bool) -> list[str]:
    """Make `count` names that start differently, so that no name can be mistaken for another."""
    names: list[str] = []
    while len(names) < count:
        name = make_name(rng, held_out)
        if all(name[:2] != other[:2] for other in names):
            names.append(name)
    return names


def _regular(rng: random.Random) -> str:
    syllables = [rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3)))]
    return "".join(syllables) + (rng.choice(_CODAS) if rng.random() < 0.25 else "")


def _irregular(rng: random.Random) -> str:
    """Names like those of people: open or closed syllables, some without an onset."""
    return "".join(_irregular_syllable(rng) for _ in range(2))


def _irregular_syllable(rng: random.Random) -> str:
    onset = rng.choice(_VOWELS) if rng.random() < 0.3 else rng.choice(SYLLABLES)
    return onset + (rng.choice(_CODAS) if rng.random() < 0.4 else "")


# --- families


def _describe(rng: random.Random, template: Template, held_out: bool) -> Draft:
    """Independent descriptions: every chunk needs the prompt alone, so parallel is right."""
    count = rng.choice((2, 2, 2, 3, 3, 3, 4))
    names = make_names(rng, 2 * count, held_out)
    kind = rng.choice(WORDS["kinds"])
    facts: list[dict[str, object]] = [
        {
            "n": name,
            "color": rng.choice(WORDS["colors"]),
            "place": place,
            "w": rng.randint(2, 40),
            "use": rng.choice(WORDS["uses"]),
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


def _totals(rng: random.Random, template: Template, held_out: bool) -> Draft:
    """Sub-totals inside chunks and a total behind the sync that needs them: a sync is necessary."""
    count = rng.choice((2, 2, 3, 3, 3))
    names = make_names(rng, count, held_out)
    facts: list[dict[str, object]] = []
    sums: list[int] = []
    plan = Plan("\n- " if template.as_list else " ")
    plan.say("Let us count.")
    for name in names:
        a, b, c = (rng.randint(2, 6 if count == 2 else 5) for _ in range(3))
        x, y, z = rng.sample(WORDS["fruits"], 3)
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


def _offers(rng: random.Random, template: Template, held_out: bool) -> Draft:
    """Offers that chunks add up, and a comparison behind the sync."""
    count = rng.choice((2, 2, 3))
    names = make_names(rng, count, held_out)
    x, y, z = rng.sample(WORDS["goods"], 3)
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


def _chain(rng: random.Random, template: Template, held_out: bool) -> Draft:
    """A chain in which each step needs the one before: parallel is wrong, and there is no promise."""
    names = make_names(rng, rng.choice((3, 4, 4, 5)), held_out)
    vessel, things = rng.choice(WORDS["vessels"]), rng.choice(WORDS["holders"])
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


def _fair(rng: random.Random, template: Template, held_out: bool) -> Draft:
    """An invitation: main writes text between its promises and a last line without waiting for them."""
    count = rng.choice((2, 3))
    *names, town = make_names(rng, count + 1, held_out)
    day = rng.randint(1, 30)
    plan = Plan("\n- " if template.as_list else "\n\n")
    plan.say("Come to the fair in {town}!", town=town)
    facts: list[dict[str, object]] = []
    for name, order in zip(
        names, ("First", "Then", "Last") if count == 3 else ("First", "Last"), strict=True
    ):
        fact: dict[str, object] = {
            "n": name,
            "color": rng.choice(WORDS["colors"]),
            "goods": f"{rng.choice(WORDS['kinds'])}s",
            "c": rng.randint(2, 30),
            "g": rng.randint(1, 20),
            "treat": rng.choice(WORDS["treats"]),
        }
        facts.append(fact)
        plan.say(order + " comes the stall of {n}.", is_item=True, n=name)
        plan.promise(
            name,
            say("You find {n} at gate {g}.", **fact),
            say("Look at the {color} {goods} that cost {c} coins.", **fact),
            say("You will also like the {treat} of {n}.", **fact),
            is_item=False,
        )
    plan.say("We meet on day {day}.", day=day)
    return Draft(template.fill(facts, names=listed(names), town=town, day=day), plan, [*names, town])


_DRAFTS: dict[str, Callable[[random.Random, Template, bool], Draft]] = {
    "describe": _describe,
    "totals": _totals,
    "offers": _offers,
    "chain": _chain,
    "fair": _fair,
}
FAMILIES: tuple[str, ...] = tuple(_DRAFTS)
"""The families, by name."""
