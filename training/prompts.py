"""Prompts to train on: `python -m pasta_async.training.prompts`.

Our own, put together from templates and topics (`prompts.toml`), and those of other files, in one shuffled
order, so that different parts of it (`--skip`, `--count`) are disjoint. They are written as records without
an answer, which `pasta_async.training.sample` draws; an id tells the family: `compare/0012`.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import Record, StrictModel, read_prompts, without_leaks, write_records
from pasta_async.training.english import joined
from pasta_async.training.leakage import LeakageFilter

T = TypeVar("T")


def _lines(text: object) -> object:
    return [line.strip() for line in text.splitlines() if line.strip()] if isinstance(text, str) else text


def _topics(text: object) -> object:
    return _lines(text.replace(";", "\n") if isinstance(text, str) else text)


Lines = Annotated[tuple[str, ...], BeforeValidator(_lines)]


class Form(StrictModel):
    """What an answer can be asked to look like as a whole."""

    asks: Lines
    """Sentences that ask for it; `prompts.toml` says what may stand in them."""
    holds: str
    """A regular expression that matches an answer of that form."""

    def wanted(self, prompt: str) -> re.Pattern[str] | None:
        """What an answer to the prompt has to match, if it asks for this form."""
        for ask in self.asks:
            if found := _asking(ask).search(prompt):
                holds = self.holds
                for name, given in found.groupdict().items():
                    holds = holds.replace(f"{{{name}}}", re.escape(given))
                return re.compile(holds, re.DOTALL | re.MULTILINE)
        return None


class Group(StrictModel):
    """Topics that fit the same templates."""

    topics: Annotated[tuple[str, ...], BeforeValidator(_topics), Field(min_length=1)]
    templates: Lines = ()
    """Templates of this group alone."""
    aspects: tuple[str, ...] = ()
    """What a prompt may ask about its topics."""


class Family(StrictModel):
    """A kind of prompt. `prompts.toml` describes the form of templates and topics."""

    weight: float = Field(gt=0)
    """How often it is drawn, beside the others'."""
    templates: Lines = ()
    endings: Lines = ()
    """Sentences that may stand behind a prompt."""
    groups: tuple[Group, ...] = Field(min_length=1)


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def families() -> dict[str, Family]:
    """The families of `prompts.toml`, by name."""
    file = _file()
    endings = {"": "", **file["endings"]}
    return {
        name: Family.model_validate({**family, "endings": endings[family.get("endings", "")]})
        for name, family in file["families"].items()
    }


@cache
def forms() -> tuple[Form, ...]:
    """The forms of `prompts.toml`."""
    return tuple(map(Form.model_validate, _file()["forms"]))


@cache
def _asking(ask: str) -> re.Pattern[str]:
    """Finds a sentence that asks for a form in a prompt, and what stands in its places."""
    places = {r"\{n\}": r"(?P<n>\d)", r"\{name\}": r"(?P<name>\w+)", r"\{phrase\}": "(?P<phrase>.*[.!?])"}
    asking = re.escape(ask)
    for place, pattern in places.items():
        asking = asking.replace(place, pattern)
    return re.compile(asking)


def lacks_form(prompt: str, answer: str) -> bool:
    """Whether a prompt asks for one of the forms of `prompts.toml`, and the answer does not have it."""
    wanted = (form.wanted(prompt) for form in forms())
    return any(holds and not holds.match(answer.strip()) for holds in wanted)


# --- one prompt

_NUMBERS = (*"2345678", "two", "three", "four", "five", "six", "seven", "eight")
_REQUESTS = (
    *("Please {}.", "Please {}.", "Can you {}?", "Could you {}?", "Could you please {}?"),
    *("I need you to {}.", "I'd like you to {}.", "Hi, please {}.", "{}, please."),
)
_IMPERATIVE = re.compile(
    r"(?!.*[:.?!].)(Brainstorm|Compare|Describe|Draft|Explain|Give|List|Make|Name|Outline|Plan|Share"
    r"|Suggest|Summarize|Tell|Write) .*\."
)
_FORM_IS_GIVEN = re.compile(
    r"[:\n]|\b(each|short|brief\w*|sentences?|paragraphs?|steps|lines|headings?|simpl[ey]|funny)\b"
)


def _some(rng: random.Random, items: Sequence[str], least: int, most: int) -> list[str]:
    return rng.sample(items, min(len(items), rng.randint(least, most)))


def _values(group: Group, topic: str, rng: random.Random) -> dict[str, str]:
    """What may stand in a template."""
    numbers = {"x": rng.randint(2, 9), "y": rng.randint(21, 60), "z": rng.randint(3, 12)}
    shared = {name: str(number) for name, number in numbers.items()} | {"name": rng.choice(_file()["names"])}
    parts = [part.format_map(shared) for part in topic.split("|")]
    drawn = _some(rng, parts, 2, 4)
    numbered = "".join(f"\n{number}. {part}" for number, part in enumerate(drawn, 1))
    return {
        **shared,
        "topic": parts[0],
        "a": parts[0],
        "b": parts[1 % len(parts)],
        "items": joined(_some(rng, parts, 2, 5)),
        "rest": joined(_some(rng, parts[1:], 2, 4)),
        "list": numbered if rng.random() < 0.6 else " " + " ".join(drawn),
        "n": rng.choice(_NUMBERS),
        "aspects": joined(_some(rng, group.aspects, 2, 4)),
    }


def _in_form(text: str, rng: random.Random) -> str:
    """A prompt that asks for a form behind what it asks."""
    ask = rng.choice(rng.choice(forms()).asks).format(
        n=rng.randint(2, 6), name=rng.choice(_file()["names"]), phrase=rng.choice(_file()["phrases"])
    )
    ended = text[-1] in ".?!"
    return f"{text}{' ' if ended and rng.random() < 0.7 else chr(10)}{ask}"


def _typed(text: str, endings: Sequence[str], rng: random.Random) -> str:
    """A prompt as one user or another types it: politely, with a wish for the form, in haste."""
    chance = rng.random()
    if chance < 0.25 and _IMPERATIVE.fullmatch(text):
        request = rng.choice(_REQUESTS)
        bare = text[:-1] if request.startswith("{}") else text[0].lower() + text[1:-1]
        text = request.format(bare)
    elif 0.25 <= chance < 0.45 and endings and not _FORM_IS_GIVEN.search(text) and text[-1] in ".?":
        text = f"{text} {rng.choice(endings)}"
    elif 0.45 <= chance < 0.55 and not re.search(r"[.?!]\s|\n|^I\b", text):
        text = (text[0].lower() if text[1:2].islower() else text[0]) + text[1:].rstrip(".?")
    return text


# --- the order


def _deck(items: Sequence[T], rng: random.Random) -> Iterator[T]:
    """Items in a random order, again and again: none comes back before all others were there."""
    while True:
        yield from rng.sample(items, len(items))


def make_prompts(family: Family, rng: random.Random, in_form: float = 0.0) -> Iterator[str]:
    """Different prompts of a family, topics and templates in turn, until they repeat themselves.

    `in_form` is the share of those that ask for one of `forms`.
    """
    topics = [(group, topic) for group in family.groups for topic in group.topics]
    templates = {id(group): _deck(family.templates + group.templates, rng) for group in family.groups}
    seen: set[str] = set()
    failures = 0
    for group, topic in _deck(topics, rng):
        template = next(templates[id(group)])
        values = _values(group, topic, rng)
        # The same request about the same things is no new prompt, even with another number or other aspects.
        same = template.format_map(values | {"n": "", "aspects": ""})
        if same in seen:
            failures += 1
            if failures > len(topics):
                return
            continue
        failures = 0
        seen.add(same)
        text = template.format_map(values)
        text = text[0].upper() + text[1:]
        wanted = in_form and rng.random() < in_form
        yield _in_form(text, rng) if wanted else _typed(text, family.endings, rng)


_PASSAGE = re.compile(
    r"\b(this|the|given|provided)( (given|provided|above|following))? (text|passage|paragraph|excerpt)\b"
    r"|\b(this|given|provided|above|following) (article|context|summary)\b"
    r"|\b(text|passage|paragraph|article) (provided|given|above|below)\b",
    re.IGNORECASE,
)


def lacks_passage(prompt: str) -> bool:
    """Whether a prompt of one paragraph speaks of a passage ("in the text"), which is not there, then."""
    return "\n" not in prompt.strip() and _PASSAGE.search(prompt) is not None


def ordered(
    seed: int, files: Sequence[Path] = (), share: float = 0.4, in_form: float = 0.0
) -> Iterator[Record]:
    """All prompts in the order of a seed: families in turn by their weights, and files by their share.

    Args:
        seed: Of everything that is drawn.
        files: Further prompts, in any form that `corpus.read_prompts` reads; not those that lack a passage.
        share: Of the prompts that come from files, as long as there are any.
        in_form: Share of the other prompts that ask for one of `forms`.

    Raises:
        InvalidRequestError: A file cannot be read, holds no prompt, or is called as another or a family is.
    """
    rng = random.Random(seed)
    found = families()
    weights = {name: family.weight for name, family in found.items()}
    total = sum(weights.values())
    sources = {
        name: make_prompts(family, random.Random(f"{seed}/{name}"), in_form) for name, family in found.items()
    }
    origins = dict.fromkeys(found, "pasta_async.training.prompts")
    for path in files:
        prompts = [prompt.strip() for prompt in read_prompts(path) if not lacks_passage(prompt)]
        name = path.name.partition(".")[0]
        if name in sources:
            raise InvalidRequestError(f"{path}: ids from {name!r} are taken; rename the file")
        weights[name] = total * share / (1 - share) / len(files)
        origins[name] = path.name
        sources[name] = iter(rng.sample(prompts, len(prompts)))
    numbers = dict.fromkeys(sources, 0)
    seen: set[str] = set()
    while weights:
        (name,) = rng.choices([*weights], [*weights.values()])
        prompt = next((one for one in sources[name] if one.casefold() not in seen), None)
        if prompt is None:
            del weights[name]
            continue
        seen.add(prompt.casefold())
        numbers[name] += 1
        messages = ({"role": "user", "content": prompt},)
        yield Record(id=f"{name}/{numbers[name]:04}", messages=messages, written="", source=origins[name])


# --- the command


class PromptSettings(CommandSettings):
    """What to write."""

    out: Path = Field(description="file to write: records without an answer, JSON lines")
    count: int = Field(default=3000, ge=1, description="prompts to write")
    skip: int = Field(default=0, ge=0, description="leave out the first so many of the order")
    seed: int = Field(default=1, description="of the order")
    also: tuple[Path, ...] = Field(default=(), description="files of further prompts, such as Dolly's")
    share: float = Field(default=0.4, gt=0, lt=1, description="of the prompts that come from these files")
    in_form: float = Field(
        default=0, ge=0, le=1, description="of our own prompts, those that ask for a form: a title, JSON, ..."
    )
    against: tuple[Path, ...] = Field(default=(), description="files of evaluation prompts to keep out")


def write_prompts(settings: PromptSettings) -> dict[str, Any]:
    """Write the file, and return how many prompts there are of each family, and what was left out.

    Raises:
        InvalidRequestError: A file cannot be read, or there are fewer prompts than wanted.
    """
    leaks = LeakageFilter(prompt for path in settings.against for prompt in read_prompts(path))
    end = settings.skip + settings.count
    found, left_out = ordered(settings.seed, settings.also, settings.share, settings.in_form), Counter[str]()
    records = list(islice(without_leaks(found, leaks, left_out), end))
    if len(records) < end:
        raise InvalidRequestError(f"there are {len(records)} prompts, and not {end}: lower --skip or --count")
    written = records[settings.skip :]
    write_records(settings.out, written)
    counts = Counter(record.id.partition("/")[0] for record in written)
    return {"prompts": len(written), "families": dict(counts), "left_out": dict(left_out)}


main: Command = command(PromptSettings, write_prompts, "pasta_async.training.prompts", __doc__)

if __name__ == "__main__":
    main()
