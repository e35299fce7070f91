"""The five families of the synthetic task, their open vocabulary of names, and the grading of answers.

`task.toml` has the wording.
"""

from __future__ import annotations

import random
import re
import tomllib
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pasta_async.lang.document import Chunk, Document, Promise, Sync, Text
from pasta_async.training.corpus.tokens import in_tens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pasta_async.lang.document import Node

__all__ = [
    "FAMILIES",
    "SYLLABLES",
    "WORDS",
    "Example",
    "Split",
    "Template",
    "grade",
    "is_held_out",
    "make_name",
    "merge_text",
    "sample",
    "score",
    "templates",
]

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


@dataclass(frozen=True, slots=True)
class Template:
    """How a user words a request: a frame around the facts, the wording of each fact, and small talk."""

    frame: str
    fact: str
    as_list: bool = False
    opening: str = ""
    closing: str = ""

    def fill(self, facts: Sequence[dict[str, object]], **slots: object) -> str:
        """Write the prompt."""
        lines = [self.fact.format(**slots, **fact) for fact in facts]
        frame = " ".join(part for part in (self.opening, self.frame, self.closing) if part)
        if not self.as_list:
            return frame.format(facts=" ".join(lines), **slots)
        frame = frame.replace(" {facts}", "\n{facts}").replace("{facts} ", "{facts}\n")
        return frame.format(facts="\n".join(f"- {line}" for line in lines), **slots)


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
    content = _CONTENTS[family](rng, split == "names")
    steps = _steps(family, content)
    separator = "\n- " if template.as_list else _TASK["families"][family]["separator"]
    return Example(
        family=family,
        split=split,
        seed=seed,
        prompt=template.fill(content.items, **content.slots),
        document=_document(steps, separator, count_tokens or _rough_count),
        facts=tuple(sentence.facts for step in steps for sentence in step.sentences if sentence.facts),
        names=tuple(content.names),
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


def _make_names(rng: random.Random, count: int, held_out: bool) -> list[str]:
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


class _Content(NamedTuple):
    """What a family draws: the content of a prompt and its answer."""

    names: list[str]
    items: list[dict[str, Any]]
    """The values of each item, for its fact in the prompt and for its sentences."""
    slots: dict[str, Any]
    """Further values for the prompt and for the opening."""
    closing: list[tuple[str, dict[str, Any]]]
    """The sentences behind the items, with their values."""


def _describe(rng: random.Random, held_out: bool) -> _Content:
    count = rng.choice((2, 2, 2, 3, 3, 3, 4))
    names = _make_names(rng, 2 * count, held_out)
    kind = rng.choice(WORDS["kinds"])
    items = [
        {
            "n": name,
            "kind": kind,
            "color": rng.choice(WORDS["colors"]),
            "place": place,
            "w": rng.randint(2, 40),
            "use": rng.choice(WORDS["uses"]),
        }
        for name, place in zip(names[:count], names[count:], strict=True)
    ]
    return _Content(names, items, {"kinds": f"{kind}s", "names": _listed(names[:count])}, [])


def _totals(rng: random.Random, held_out: bool) -> _Content:
    count = rng.choice((2, 2, 3, 3, 3))
    names = _make_names(rng, count, held_out)
    items: list[dict[str, Any]] = []
    for name in names:
        a, b, c = (rng.randint(2, 6 if count == 2 else 5) for _ in range(3))
        items.append(_sum(name, (a, b, c), rng.sample(WORDS["fruits"], 3)))
    total, *terms = (item["abc"] for item in items)
    closing: list[tuple[str, dict[str, Any]]] = []
    for term in terms:
        closing.append(("Then {a} plus {b} is {s}.", {"a": total, "b": term, "s": total + term}))
        total += term
    closing.append(("The total is {s} fruits.", {"s": total}))
    return _Content(names, items, {"names": _listed(names)}, closing)


def _offers(rng: random.Random, held_out: bool) -> _Content:
    names = _make_names(rng, rng.choice((2, 2, 3)), held_out)
    goods = rng.sample(WORDS["goods"], 3)
    while True:  # one shop alone is the cheapest
        prices = [(rng.randint(2, 7), rng.randint(2, 7), rng.randint(2, 7)) for _ in names]
        lowest, second, *_ = sorted(map(sum, prices))
        if lowest < second:
            break
    items = [_sum(name, price, goods) for name, price in zip(names, prices, strict=True)]
    closing = [("{n} asks {abc}.", item) for item in items]
    best = next(item for item in items if item["abc"] == lowest)
    closing.append(("The best price is {abc}, so choose {n}.", best))
    return _Content(names, items, {"names": _listed(names)}, closing)


def _sum(name: str, numbers: tuple[int, int, int], things: list[str]) -> dict[str, Any]:
    (a, b, c), (x, y, z) = numbers, things
    return {"n": name, "a": a, "b": b, "c": c, "x": x, "y": y, "z": z, "ab": a + b, "abc": a + b + c}


def _chain(rng: random.Random, held_out: bool) -> _Content:
    names = _make_names(rng, rng.choice((3, 4, 4, 5)), held_out)
    slots: dict[str, Any] = {"vessel": rng.choice(WORDS["vessels"]), "things": rng.choice(WORDS["holders"])}
    slots |= {"start": rng.randint(4, 15), "names": _listed(names)}
    left = slots["start"]
    items: list[dict[str, Any]] = []
    for name in names:
        adds = left <= 4 or (left < 18 and rng.random() < 0.5)
        k = rng.randint(2, 6 if adds else min(6, left - 2))
        left += k if adds else -k
        items.append({"n": name, "does": "adds" if adds else "takes", "k": k, "left": left})
    closing = [("In the end the {vessel} holds {left} {things}.", {**slots, "left": left})]
    return _Content(names, items, slots, closing)


def _fair(rng: random.Random, held_out: bool) -> _Content:
    count = rng.choice((2, 3))
    *names, town = _make_names(rng, count + 1, held_out)
    day = rng.randint(1, 30)
    items = [
        {
            "n": name,
            "before": f"{order} comes the stall of {{n}}.",
            "color": rng.choice(WORDS["colors"]),
            "goods": f"{rng.choice(WORDS['kinds'])}s",
            "c": rng.randint(2, 30),
            "g": rng.randint(1, 20),
            "treat": rng.choice(WORDS["treats"]),
        }
        for name, order in zip(names, ["First", *["Then", "Last"][-count + 1 :]], strict=True)
    ]
    slots = {"names": _listed(names), "town": town, "day": day}
    return _Content([*names, town], items, slots, [("We meet on day {day}.", slots)])


def _listed(items: Sequence[str]) -> str:
    """Join names as a sentence does: "A, B and C"."""
    return f"{', '.join(items[:-1])} and {items[-1]}"


_CONTENTS: dict[str, Callable[[random.Random, bool], _Content]] = {
    "describe": _describe,
    "totals": _totals,
    "offers": _offers,
    "chain": _chain,
    "fair": _fair,
}
FAMILIES: tuple[str, ...] = tuple(_CONTENTS)
"""The families, by name."""


# --- answers


class _Sentence(NamedTuple):
    text: str
    facts: tuple[str, ...]
    """The words of it that are facts, in order."""


class _Step(NamedTuple):
    """A step of an answer: sentences, by main or (with a topic) promised; none of them is a sync."""

    sentences: tuple[_Sentence, ...] = ()
    topic: str = ""
    is_item: bool = False


def _steps(family: str, content: _Content) -> list[_Step]:
    wording = _TASK["families"][family]
    steps = [_Step((_fill(wording["opening"], content.slots),))]
    for item in content.items:
        if "before" in item:
            steps.append(_Step((_fill(item["before"], item),), is_item=True))
        sentences = tuple(_fill(pattern, item) for pattern in wording["item"])
        steps.append(_Step(sentences, "" if family == "chain" else item["n"], "before" not in item))
    if family in ("totals", "offers"):
        steps.append(_Step())
    return [*steps, *(_Step((_fill(pattern, values),)) for pattern, values in content.closing)]


def _fill(pattern: str, values: Mapping[str, object]) -> _Sentence:
    """Fill a sentence; the values that the pattern uses are its facts, in the order of the pattern."""
    parts = pattern.format(**{key: f"\0{value}\0" for key, value in values.items()}).split("\0")
    return _Sentence("".join(parts), tuple(word for part in parts[1::2] for word in part.split()))


def _document(steps: Sequence[_Step], separator: str, count_tokens: Callable[[str], int]) -> Document:
    nodes: list[Node] = []
    among_items = False
    for step in steps:
        if not step.sentences:
            nodes.append(Sync())
            continue
        behind = separator.rstrip("- ") or " " if among_items and not step.topic else " "
        nodes += [Text(separator if step.is_item else behind)] if nodes else []
        among_items = step.is_item or (among_items and bool(step.topic))
        text = " ".join(sentence.text for sentence in step.sentences)
        if step.topic:
            nodes.append(Promise(step.topic, in_tens(count_tokens(text)), Chunk((Text(text),))))
        else:
            nodes.append(Text(text))
    return Document(merge_text(nodes))


def merge_text(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Join neighbouring texts, as a parser reads them."""
    merged: list[Node] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, Text) and isinstance(last, Text):
            merged[-1] = Text(last.text + node.text)
        else:
            merged.append(node)
    return tuple(merged)


# --- grading


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
