"""Plans against the same objects in sequence: calls with known arguments, right or wrong, and speed.

    python -m pasta_async.evals.plans --backend local:qwen-1.5b --data bfcl_eval/data --out plans.jsonl

The items are those of the Berkeley Function Calling Leaderboard with at least two required arguments, from
the wheel of bfcl-eval (Apache-2.0), unpacked: a question, a function, the values that count as right. Each
item is filled by each method, greedily, in an order that goes round. `--subset invoices` needs no data:
eight fields are to be found in texts made of templates, so that their values are known. With `profiles` or
`reports` the fields are free text on given subjects, four or six of them, and nothing is right or wrong:

    object      the whole object in one thread, its keys decoded as well
    sequence    a field after the other, each of which sees all before it; keys are given, not decoded
    together    two neighbours one after the other, these pairs at once
    after       the first field, then all others at once, which see it
    parallel    all fields at once

`sooner` is the time of `sequence` divided by that of the method, for each item, as a geometric mean.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from pydantic import Field

from pasta_async.cli.command import Command, Count, command
from pasta_async.client import Client
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import (
    Answer,
    MeasureSettings,
    cold_client,
    costs_of,
    sample_of,
    take_turns,
)
from pasta_async.evals.report import markdown_table
from pasta_async.evals.speed import pairs
from pasta_async.evals.statistics import estimate, mean_difference, percentage
from pasta_async.options import Limits
from pasta_async.plans import Filled, Plan
from pasta_async.plans.schema import KEY
from pasta_async.training.data.corpus import read_lines
from pasta_async.training.jobs import Journal

METHODS = ("object", "sequence", "together", "after", "parallel")

_NUMBER = {"type": "number"}
_TYPES = {"float": "number", "dict": "object", "tuple": "array"}

SUBJECTS = (
    *("trees in cities", "working from home", "electric cars", "school uniforms", "public libraries"),
    *("night trains", "solar power", "zoos", "mobile phones at school", "cycling to work", "organic farming"),
    *("video games", "tourism on islands", "robots in hospitals", "fast food", "cash and cards"),
    *("museums without entrance fees", "pets in flats", "four-day weeks", "street markets"),
)
FORMS: Mapping[str, tuple[Sequence[str], int]] = {
    "profiles": (("definition", "benefits", "drawbacks", "outlook"), 60),
    "reports": (("background", "benefits", "costs", "risks", "examples", "outlook"), 90),
}
"""Forms of free text on each of the subjects: their fields, and the most tokens of a field."""

INVOICES = (
    "{seller}. Invoice {number} of {date} to {customer}. {work}: {net:.2f}, VAT {vat:.2f}, "
    "together {total:.2f} {currency}. Please pay by {due}.",
    "Dear {customer}, for {work} we charge {net:.2f} {currency} and VAT of {vat:.2f}, "
    "which makes {total:.2f}. We ask for payment until {due}. Bill no. {number}, written on {date}. "
    "Yours, {seller}",
    "BILL {number}\nFrom: {seller}\nFor: {customer}\nDate: {date}\nDue: {due}\n{work}\nNet {net:.2f}\n"
    "VAT {vat:.2f}\nTotal {currency} {total:.2f}",
)
_INVOICE_KEYS = (
    "number (a letter and digits), seller (who asks for the money), customer (who has to pay), "
    "date (when it was written), due (the last day to pay), net (the amount without VAT), "
    "total (the amount with VAT), currency"
)
_SELLERS = ("Ferry Print", "Flowers by Meyer", "TechFix", "Green Gardens", "Hill Bakery", "North Studio")
_CUSTOMERS = ("Oak & Sons", "Hotel Crown", "Dana Hughes", "St Mary School", "Lakeside Clinic")
_WORKS = ("printing of flyers", "repair of a laptop", "two days of gardening", "bread for an event")


@dataclass(frozen=True, slots=True)
class Item:
    """A call that is to be made."""

    name: str
    prompt: str
    fields: Mapping[str, Any]
    """The schemas of its required arguments."""
    gold: Mapping[str, Sequence[Any]]
    """The values of each argument that count as right; empty where there is no right and wrong."""
    tokens: int = 200
    """Most tokens of a field."""


WARM_UP = Item(
    "warm-up",
    "Write about fruit: a JSON object with the keys apples, pears, each a few words.",
    {"apples": {"type": "string"}, "pears": {"type": "string"}},
    {},
    20,
)


class PlanSettings(MeasureSettings):
    """Settings of the measurement."""

    data: Path = Field(default=Path("bfcl_eval/data"), description="that folder of the unpacked wheel")
    subset: str = Field(
        default="simple_python",
        description="simple_python or live_simple of BFCL; invoices, profiles or reports",
    )
    sample: Count | None = Field(default=100, description="items, drawn at random")


def read_items(folder: Path, subset: str, sample: int | None) -> list[Item]:
    """A sample of items: of BFCL those with at least two required arguments; invoices, or forms of free text.

    Raises:
        InvalidRequestError: The files are not there, or of another form.
    """
    if subset == "invoices":
        return [_invoice(number) for number in range(sample or 100)]
    if subset in FORMS:
        keys, tokens = FORMS[subset]
        fields = {key: {"type": "string"} for key in keys}
        prompt = "Write about {}: a JSON object with the keys " + ", ".join(keys) + ", each a few sentences."
        return [Item(name, prompt.format(name), fields, {}, tokens) for name in sample_of(SUBJECTS, sample)]
    name = f"BFCL_v4_{subset}.json"
    answers = [*read_lines(folder / "possible_answer" / name, dict[str, Any])]
    questions = [*read_lines(folder / name, dict[str, Any])]
    try:
        gold = {row["id"]: row["ground_truth"][0] for _, row in answers}
        items = [_item(row, gold[row["id"]]) for _, row in questions]
    except (ValueError, LookupError) as error:
        raise InvalidRequestError(f"{folder} does not hold BFCL's {subset}: {error!r}") from error
    return sample_of([item for item in items if len(item.fields) > 1], sample)


def _invoice(number: int) -> Item:
    """An invoice of the templates and of values drawn by its number."""
    draw = random.Random(number)
    written = date(2026, 1, 1) + timedelta(draw.randrange(300))
    net = draw.randrange(2000, 90000) / 100
    vat = round(net * draw.choice((0.07, 0.19, 0.2)), 2)
    values: dict[str, Any] = {
        "number": f"{draw.choice('ABCD')}-{draw.randrange(100, 9999)}",
        "seller": draw.choice(_SELLERS),
        "customer": draw.choice(_CUSTOMERS),
        "date": written.isoformat(),
        "due": (written + timedelta(draw.choice((7, 14, 30)))).isoformat(),
        "net": net,
        "total": round(net + vat, 2),
        "currency": draw.choice(("EUR", "USD", "GBP")),
    }
    text = INVOICES[number % len(INVOICES)].format(**values, vat=vat, work=draw.choice(_WORKS))
    kinds = {"date": {"format": "date"}, "due": {"format": "date"}, "net": _NUMBER, "total": _NUMBER}
    fields = {key: {"type": "string", **kinds.get(key, {})} for key in values}
    prompt = f"{text}\n\nWrite this invoice as one JSON object with the keys {_INVOICE_KEYS}."
    return Item(f"invoice {number}", prompt, fields, {key: [value] for key, value in values.items()}, 40)


def _item(row: Mapping[str, Any], gold: Mapping[str, Any]) -> Item:
    function = row["function"][0]
    parameters = function["parameters"]["properties"]
    required = [key for key in parameters if key in function["parameters"].get("required", ())]
    listed = "\n".join(
        f"- {key} ({parameters[key].get('type')}): {parameters[key].get('description', '')}"[:300]
        for key in required
    )
    prompt = (
        f"Question: {row['question'][0][-1]['content']}\n\n"
        f"Function {function['name']}: {function.get('description', '')[:300]}\nArguments:\n{listed}\n\n"
        f"Write the arguments of the call as one JSON object with the keys {', '.join(required)}."
    )
    fields = {key: _schema(parameters[key]) for key in required}
    [values] = gold.values()
    return Item(row["id"], prompt, fields, {key: values[key] for key in required})


def _schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a parameter, which BFCL describes in a dialect of its own."""
    if "enum" in parameter:
        return {"enum": parameter["enum"]}
    kind = str(parameter.get("type"))
    kind = _TYPES.get(kind, kind)
    if kind == "array":
        items = parameter.get("items")
        return {"type": "array", "items": _schema(items) if items else {"type": "string"}, "maxItems": 8}
    if kind == "object":
        fields = {key: _schema(value) for key, value in parameter.get("properties", {}).items()}
        return {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": kind if kind in ("integer", "number", "boolean") else "string"}


def plan_of(item: Item, method: str) -> Plan:
    """The plan by which a method fills an item."""
    schema: dict[str, Any] = {"type": "object", "required": list(item.fields)}
    if method == "object":
        whole = (item.tokens + 10) * len(item.fields)
        return Plan.in_sequence({**schema, "properties": item.fields}, whole)
    fields: dict[str, Any] = {}
    for number, (key, field) in enumerate(item.fields.items()):
        annotation: dict[str, Any] = {"tokens": item.tokens}
        if method == "sequence":
            annotation["after"] = list(fields)
        elif method == "after":
            annotation["after"] = list(fields)[:1]
        elif method == "together":
            annotation["together"] = str(number // 2)
        fields[key] = {**field, KEY: annotation}
    return Plan.of({**schema, "properties": fields})


def is_right(value: Any, allowed: Sequence[Any]) -> bool:
    """True if an argument's value is one of those that count as right, by BFCL's rules."""
    return any(_same(value, right) for right in allowed)


def _same(value: Any, gold: Any) -> bool:
    if isinstance(value, bool) or isinstance(gold, bool):
        return value is gold
    if isinstance(value, str) and isinstance(gold, str):
        return _plain(value) == _plain(gold)
    if isinstance(value, list) and isinstance(gold, list):
        values, golds = cast("list[Any]", value), cast("list[Any]", gold)
        return len(values) == len(golds) and all(map(_same, values, golds))
    if isinstance(value, dict) and isinstance(gold, dict):
        fields, allowed = cast("dict[str, Any]", value), cast("dict[str, Any]", gold)
        return fields.keys() == allowed.keys() and all(
            is_right(fields[key], cast("list[Any]", right) if isinstance(right, list) else [right])
            for key, right in allowed.items()
        )
    return value == gold


def _plain(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


async def measure(client: Client, items: Sequence[Item], journal: Journal | None = None) -> list[Answer]:
    """Fill each item by each method; see `take_turns`. The text of an answer is its object, as JSON.

    Before that each method fills `WARM_UP`, which does not count.
    """

    async def fill(item: Item, method: str) -> Filled[Any]:
        # Another method's prompt must not be found in the cache: its first message differs.
        messages = [{"role": "system", "content": f"You call functions ({method})."}]
        messages.append({"role": "user", "content": item.prompt})
        return await client.fill(messages, plan_of(item, method), instruct=False)

    async def answer(index: int, method: str, number: int) -> Answer:
        filled = await fill(items[index], method)
        return Answer(
            index,
            method,
            number,
            seconds=filled.generation.elapsed,
            text=json.dumps(filled.value),
            well_formed=not filled.truncated,
            question=items[index].name,
            **costs_of(filled.generation),
        )

    async def warm_up() -> None:
        for method in METHODS:
            await fill(WARM_UP, method)

    return await take_turns(answer, len(items), METHODS, journal=journal, warm_up=warm_up)


def summarise(items: Sequence[Item], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each method: percent right, the difference to `sequence`, and how much sooner."""

    def values_right(answer: Answer) -> list[bool]:
        value = json.loads(answer.text)
        gold = items[answer.prompt].gold
        return [is_right(value.get(key), allowed) for key, allowed in gold.items()]

    def right(answer: Answer) -> bool:
        return all(values_right(answer))

    rows: list[dict[str, Any]] = []
    judged = any(item.gold for item in items)  # free text is neither right nor wrong
    for method in METHODS:
        # The same items by both methods; a difference is 100, 0 or -100 points.
        both = pairs(answers, method, "sequence")
        differences = [100.0 * (int(right(answer)) - int(right(other))) for answer, other in both]
        marks = [(answer.prompt, mark) for answer, _ in both for mark in values_right(answer)]
        values, prompts = [mark for _, mark in marks], [prompt for prompt, _ in marks]
        rows.append(
            {
                "method": method,
                "items": len(both),
                "right, %": percentage([right(answer) for answer, _ in both]) if judged else None,
                "values right, %": percentage(values, clusters=prompts) if judged else None,
                "difference": mean_difference(differences) if judged else None,
                "whole, %": percentage([answer.well_formed for answer, _ in both]),
                "sooner": estimate([other.seconds / answer.seconds for answer, other in both]),
                "critical path": fmean(answer.critical_path for answer, _ in both),
                "tokens": fmean(answer.tokens for answer, _ in both),
            }
        )
    return rows


async def _run(settings: PlanSettings) -> str:
    items = read_items(settings.data, settings.subset, settings.sample)
    async with (
        settings.journal("plans", [item.prompt for item in items]) as journal,
        cold_client(settings.backend, Limits(timeout=None), **settings.backend_options) as client,
    ):
        answers = await measure(client, items, journal)
    return markdown_table(summarise(items, answers))


main: Command = command(PlanSettings, _run, "plans", __doc__, resumes=True)

if __name__ == "__main__":
    main()
