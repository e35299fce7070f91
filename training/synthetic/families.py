"""The five families of the synthetic task, their open vocabulary of names, and the grading of answers.

`task.toml` has the wording; here is what is drawn, and how an answer is put together.
"""

from __future__ import annotations

import random
import re
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pasta_async.lang import Chunk, Document, Promise, Sync
from pasta_async.training.views import Mark, insert_tags, recount

Family = Literal["describe", "totals", "offers", "chain", "fair"]


def joined(items: Sequence[str]) -> str:
    """Items as a sentence has them: "A, B and C"."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


FAMILIES: tuple[Family, ...] = get_args(Family)
SOURCE = "synthetic"
Split = Literal["train", "names", "templates"]
"""`train`; `names`: known templates, unseen names; `templates`: unseen templates, names of training."""

_TASK: dict[str, Any] = tomllib.loads(Path(__file__).with_name("task.toml").read_text(encoding="utf-8"))
WORDS: dict[str, tuple[str, ...]] = {name: tuple(words) for name, words in _TASK["words"].items()}
"""The closed vocabulary, by kind: colors, kinds, ..., openings, closings."""

_CLAIM = re.compile(r"[^.!?]+[.!?]?")
_WORD = re.compile(r"\w+")
_ONSETS = "b c d f g h j k l m n p r s t v w y z br ch dr gr kr pl sh st tr".split()
_VOWELS = "aeiou"
_CODAS = "bdklmnprst"
SYLLABLES: tuple[str, ...] = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
"""Open syllables, each one token (small and capitalised) of the shipped model."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, the answer that a perfect model writes, and what a program checks in any answer."""

    family: str
    split: Split
    seed: int
    prompt: str
    """What a user types."""
    document: Document
    """The annotated answer; its `text` is the answer of the plain baseline."""
    facts: tuple[tuple[str, ...], ...]
    """For each sentence of the answer that states facts: the words that it must contain, in order."""
    names: tuple[str, ...]
    """Every invented name in the prompt."""
    frame: str = ""
    """How the request is worded, of which the facts are no part (`Template.frame`)."""

    @property
    def id(self) -> str:
        """Its name, by which `records.example_of` finds it again."""
        return f"{SOURCE}/{self.family}/{self.split}/{self.seed}"


class Template(NamedTuple):
    """How a user words a request: a frame around the facts, and the wording of each fact."""

    frame: str
    fact: str
    as_list: bool

    def fill(self, facts: Sequence[Mapping[str, object]], slots: Mapping[str, object]) -> str:
        """Write the prompt."""
        lines = [self.fact.format(**slots, **fact) for fact in facts]
        if not self.as_list:
            return self.frame.format(facts=" ".join(lines), **slots)
        frame = self.frame.replace(" {facts}", "\n{facts}").replace("{facts} ", "{facts}\n")
        return frame.format(facts="\n".join(f"- {line}" for line in lines), **slots)


@cache
def templates(family: str, split: Split) -> tuple[Template, ...]:
    """The templates that a split draws from; those of `templates` are in no other split."""
    wording = _TASK["families"][family]
    frames = wording["held_out_frames" if split == "templates" else "frames"]
    facts = [(fact.removeprefix("- "), fact.startswith("- ")) for fact in wording["facts"]]
    return tuple(Template(frame, *fact) for frame in frames for fact in facts)


def sample(
    family: str, seed: int, split: Split = "train", count_tokens: Callable[[str], int] | None = None
) -> Example:
    """Draw one example of a family; the same seed, family and split always give the same one.

    Estimates are counted with `count_tokens`, by default a rough count of words.

    Raises:
        ValueError: There is no such family or split.
    """
    for given, known in ((family, FAMILIES), (split, get_args(Split))):
        if given not in known:
            raise ValueError(f"no {given!r}; there are {', '.join(known)}")
    rng = random.Random(f"{family}/{split}/{seed}")
    template = rng.choice(templates(family, split))
    if split != "templates":
        template = template._replace(frame=_with_small_talk(rng, template.frame))
    content = _CONTENTS[family](_Draw(rng, split == "names"))
    separator = "\n- " if template.as_list else _TASK["families"][family]["separator"]
    document, facts = _answer(family, content, separator, count_tokens or _rough_count)
    prompt = template.fill(content.items, content.slots)
    return Example(family, split, seed, prompt, document, facts, tuple(content.names), template.frame)


def _with_small_talk(rng: random.Random, frame: str) -> str:
    """Words around the request: with a few dozen bare frames, a model learns where in each a fact stands."""
    opening = rng.choice(WORDS["openings"]) if rng.random() < 0.5 else ""
    closing = rng.choice(WORDS["closings"]) if rng.random() < 0.5 else ""
    return " ".join(filter(None, (opening, frame, closing)))


def _rough_count(text: str) -> int:
    """About as many tokens as the shipped tokenizer makes of an answer (it has 1.3 a word)."""
    return int(1.4 * len(text.split()))


def is_held_out(name: str) -> bool:
    """Whether a name is kept out of training: one combination of syllables in ten, by its checksum."""
    return zlib.crc32(name.encode()) % 10 == 0


def make_name(rng: random.Random, held_out: bool) -> str:
    """Make a name, such as "Kelora", from the training names or from the held-out ones."""
    while True:
        name = _make_any_name(rng).capitalize()
        if is_held_out(name) == held_out and len(name) >= 3:
            return name


def _make_any_name(rng: random.Random) -> str:
    """Open syllables; or, like people's names, two open or closed ones, some without an onset."""
    if rng.random() < 0.75:
        name = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3))))
        return name + (rng.choice(_CODAS) if rng.random() < 0.25 else "")
    name = ""
    for _ in range(2):
        name += rng.choice(_VOWELS) if rng.random() < 0.3 else rng.choice(SYLLABLES)
        name += rng.choice(_CODAS) if rng.random() < 0.4 else ""
    return name


_Values = dict[str, Any]


class _Draw(NamedTuple):
    """What the families draw from."""

    rng: random.Random
    held_out: bool

    def number(self, least: int, most: int) -> int:
        return self.rng.randint(least, most)

    def word(self, kind: str) -> str:
        return self.rng.choice(WORDS[kind])

    def names(self, count: int) -> list[str]:
        """Names that start differently, so that none can be mistaken for another."""
        names: list[str] = []
        while len(names) < count:
            name = make_name(self.rng, self.held_out)
            if all(name[:2] != other[:2] for other in names):
                names.append(name)
        return names


class _Content(NamedTuple):
    """What a family draws: values for the wording of a prompt and of its answer."""

    names: list[str]
    items: list[_Values]
    """Of each item: for its fact in the prompt and for its sentences."""
    slots: _Values
    """Of the whole."""
    steps: Sequence[_Values] = ()
    """Of the sentences behind the items."""


def _describe(draw: _Draw) -> _Content:
    count = draw.rng.choice((2, 2, 2, 3, 3, 3, 4))
    names = draw.names(2 * count)
    kind = draw.word("kinds")
    items = [
        {"n": n, "color": draw.word("colors"), "place": p, "w": draw.number(2, 40), "use": draw.word("uses")}
        for n, p in zip(names[:count], names[count:], strict=True)
    ]
    return _Content(names, items, {"kind": kind, "kinds": f"{kind}s", "names": joined(names[:count])})


def _totals(draw: _Draw) -> _Content:
    names = draw.names(draw.rng.choice((2, 2, 3, 3, 3)))
    most = 6 if len(names) == 2 else 5
    items: list[_Values] = []
    for name in names:
        numbers = [draw.number(2, most) for _ in range(3)]
        items.append(_sum(name, numbers, draw.rng.sample(WORDS["fruits"], 3)))
    total, *terms = (item["abc"] for item in items)
    steps: list[_Values] = []
    for term in terms:
        steps.append({"total": total, "term": term, "sum": total + term})
        total += term
    return _Content(names, items, {"names": joined(names), "sum": total}, steps)


def _offers(draw: _Draw) -> _Content:
    names = draw.names(draw.rng.choice((2, 2, 3)))
    goods = draw.rng.sample(WORDS["goods"], 3)
    while True:  # one shop alone is the cheapest
        prices = [[draw.number(2, 7) for _ in range(3)] for _ in names]
        lowest, second, *_ = sorted(map(sum, prices))
        if lowest < second:
            break
    items = [_sum(name, price, goods) for name, price in zip(names, prices, strict=True)]
    best = next(item["n"] for item in items if item["abc"] == lowest)
    return _Content(names, items, {"names": joined(names), "lowest": lowest, "best": best}, items)


def _sum(name: str, numbers: Sequence[int], things: Sequence[str]) -> _Values:
    (a, b, c), (x, y, z) = numbers, things
    return {"n": name, "a": a, "b": b, "c": c, "x": x, "y": y, "z": z, "ab": a + b, "abc": a + b + c}


def _chain(draw: _Draw) -> _Content:
    names = draw.names(draw.rng.choice((3, 4, 4, 5)))
    slots: _Values = {"vessel": draw.word("vessels"), "things": draw.word("holders"), "names": joined(names)}
    slots["start"] = left = draw.number(4, 15)
    items: list[_Values] = []
    for name in names:
        adds = left <= 4 or (left < 18 and draw.rng.random() < 0.5)
        k = draw.number(2, 6 if adds else min(6, left - 2))
        left += k if adds else -k
        items.append({"n": name, "does": "adds" if adds else "takes", "k": k, "left": left})
    return _Content(names, items, {**slots, "rest": left})


def _fair(draw: _Draw) -> _Content:
    *stalls, town = names = draw.names(draw.rng.choice((2, 3)) + 1)
    day = draw.number(1, 30)
    items = [
        {"n": name, "color": draw.word("colors"), "goods": f"{draw.word('kinds')}s"}
        | {"c": draw.number(2, 30), "g": draw.number(1, 20), "treat": draw.word("treats")}
        for name in stalls
    ]
    return _Content(names, items, {"names": joined(stalls), "town": town, "day": day})


_CONTENTS = {"describe": _describe, "totals": _totals, "offers": _offers, "chain": _chain, "fair": _fair}


def _answer(
    family: str, content: _Content, separator: str, count: Callable[[str], int]
) -> tuple[Document, tuple[tuple[str, ...], ...]]:
    """The annotated answer, and the facts of each of its sentences that states some."""
    wording = _TASK["families"][family]
    facts: list[tuple[str, ...]] = []

    def write(patterns: Sequence[str], values: _Values) -> str:
        """Sentences; the values that a pattern uses are its facts, in the order of the pattern."""
        marked = {key: f"\0{value}\0" for key, value in {**content.slots, **values}.items()}
        parts = [pattern.format(**marked).split("\0") for pattern in patterns]
        stated = [tuple(word for value in part[1::2] for word in value.split()) for part in parts]
        facts.extend(filter(None, stated))
        return " ".join("".join(part) for part in parts)

    text = write([wording["opening"]], {})
    before: list[str] = wording.get("before", [])
    marks: list[Mark] = []
    for number, item in enumerate(content.items):
        text += separator
        if before:  # the last one stands before the last item
            text += write([before[-1 if number == len(content.items) - 1 else number]], item) + " "
        start = len(text)
        text += write(wording["item"], item)
        if wording["promised"]:
            marks.append(Mark(start, len(text), Promise(item["n"], None, Chunk())))
    if wording["joined"]:
        marks.append(Mark(len(text), len(text), Sync()))
    behind = [write([wording["step"]], step) for step in content.steps]
    behind += [write([wording["closing"]], {})] if "closing" in wording else []
    if behind:
        text += (separator.rstrip("- ") or " ") + " ".join(behind)
    return recount(insert_tags(text, marks), count), tuple(facts)


def score(example: Example, text: str) -> bool:
    """Whether a text answers the prompt: every fact present, correct, in its place, and no other.

    A sentence states facts if it has all their words in order, the same numbers, and the same names of the
    prompt. Sentences with no number and no name are free, and so is the wording.
    """
    return grade(example, text) == 1.0


def grade(example: Example, text: str) -> float:
    """How much of an answer is right, from 0 to 1; `score` asks for 1.

    The number of sentences that state the expected facts in the expected order (the longest such sequence),
    divided by the number of expected sentences or, if larger, of sentences that claim anything: that have a
    number, a name, or any expected facts. What is missing, wrong, repeated or misplaced costs its share.
    """
    claims = 0
    longest = [0] * (len(example.facts) + 1)  # common subsequences with the first facts
    for sentence in _CLAIM.findall(text):
        words = _WORD.findall(sentence)
        stated = [_states(words, facts, example.names) for facts in example.facts]
        claims += any(stated) or bool(_specific(words, example.names))
        before = list(longest)
        for place, match in enumerate(stated, start=1):
            longest[place] = max(before[place - 1] + match, before[place], longest[place - 1])
    return longest[-1] / max(len(example.facts), claims)


def _states(words: list[str], facts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    remaining = iter(words)
    in_order = all(fact in remaining for fact in facts)
    return in_order and _specific(words, names) == _specific(list(facts), names)


def _specific(words: list[str], names: tuple[str, ...]) -> list[str]:
    """The words that can be right or wrong: numbers and the names of the prompt."""
    return [word for word in words if word.isdigit() or word in names]
