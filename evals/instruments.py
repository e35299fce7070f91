"""What every instrument has that judges a file of answers: it gives each answer some figures, and compares.

A figure is compared prompt by prompt: the parallel answer with the plain one, and both with another model's,
where it answered. A difference has a one-sided bound beside its interval: with 95% confidence it is not less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import Field

from pasta_async.cli.command import CommandSettings
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, read_answers
from pasta_async.evals.records import markdown_table
from pasta_async.training.statistics import (
    Estimate,
    Gain,
    estimate,
    format_estimate,
    format_gain,
    gain,
    share,
)

Forms = dict[str, list[Answer]]
"""The answers by form, each in order of the prompts."""
Figures = dict[str, dict[str, list[float | None]]]
"""By name and form: a value for each answer, or None where it has none."""

_ORDER = ("parallel", "baseline", "original")


class InstrumentSettings(CommandSettings):
    """What is judged."""

    answers: Path = Field(
        description="file of answers that pasta_async.evals.answers, or another command, wrote"
    )
    out: Path = Field(description="folder of the result; a run that was interrupted goes on from what it has")


def read_forms(path: Path, needed: Sequence[str] = ()) -> tuple[dict[str, Any], Forms]:
    """What a file is answers to, and its answers (of several passes the first).

    Raises:
        InvalidRequestError: It cannot be read, a form is missing that is needed, or some prompt was not
            answered in every form.
    """
    identity, answers = read_answers(path)
    forms: Forms = {}
    for one in answers:
        if not one.number:
            forms.setdefault(one.method, []).append(one)
    places = {tuple(one.prompt for one in own) for own in forms.values()}
    count = identity.get("count", len(next(iter(places))))
    if len(places) > 1 or len(next(iter(places))) != count or {*identity.get("forms", forms)} != forms.keys():
        raise InvalidRequestError(
            f"{path} is not whole: give the command that made it once more, and it goes on"
        )
    if missing := [form for form in needed if form not in forms]:
        raise InvalidRequestError(f"{path} has no answers of the form {missing[0]}")
    return identity, forms


def compared(forms: Forms, figures: Figures) -> dict[str, Any]:
    """Estimates of the figures and of their differences, with 95% intervals over prompts.

    Returns:
        `methods`: by form and name an estimate; where all values are 0 or 100 their share, with Wilson's
        interval. `differences`: the same for `parallel - baseline` and so on, each with its `bound`, and for
        `where promised`, the prompts whose parallel answer has promises. None where no answer has a value.
    """
    known = [form for form in _ORDER if form in forms]
    promised = [one.promises > 0 for one in forms.get("parallel", ())]
    differences: dict[str, Any] = {}
    for one, other in combinations(known, 2):
        pairs = {name: _paired(own.get(one, ()), own.get(other, ())) for name, own in figures.items()}
        differences[f"{one} - {other}"] = {name: _gain(gains) for name, gains in pairs.items()}
        if one == "parallel" and other == "baseline" and any(promised):
            differences["where promised"] = {
                name: _gain([gain for gain, here in zip(gains, promised, strict=True) if here])
                for name, gains in pairs.items()
                if gains
            }
    return {
        "methods": {
            form: {"prompts": len(own)}
            | {name: _level(values.get(form, ())) for name, values in figures.items()}
            for form, own in forms.items()
        },
        "differences": differences,
    }


def _paired(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    pairs = zip(ours, theirs, strict=False)
    return [None if one is None or other is None else one - other for one, other in pairs]


def _level(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return share([value == 100 for value in known]) if {*known} <= {0, 100} else estimate(known, "arithmetic")


def _gain(values: Sequence[float | None]) -> Gain | None:
    known = [value for value in values if value is not None]
    return gain(known) if known else None


def table(found: dict[str, Any], form: str = ".1f", head: str = "") -> str:
    """What `compared` found as a table: a row for each form, then the differences with their bounds."""
    names = list(next(iter(found["methods"].values())))[1:]
    rows = [
        {
            head: method,
            "prompts": own["prompts"],
            **{name: format_estimate(own[name], form) for name in names},
        }
        for method, own in found["methods"].items()
    ]
    rows += [
        {head: label, "prompts": None, **{name: format_gain(own.get(name), form) for name in names}}
        for label, own in found["differences"].items()
    ]
    return markdown_table(rows)
