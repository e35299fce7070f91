"""What every instrument has that judges a file of answers: it gives each answer some figures, and compares.

A figure is compared prompt by prompt: the parallel answer with the plain one, and both with another model's,
where it answered. Answers to one prompt in several passes go together: prompts are drawn. A difference has a
one-sided bound beside its interval: with 95% confidence it is not less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, compress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, prompts_of, read_answers
from pasta_async.evals.records import grouped, markdown_table, write_result
from pasta_async.training.statistics import (
    Estimate,
    estimate,
    format_estimate,
    format_gain,
    gain,
    of_known,
    share,
)

S = TypeVar("S", bound="InstrumentSettings")
Forms = dict[str, list[Answer]]
"""The answers by form, each in the same order of passes and prompts."""
Figures = Mapping[str, Sequence[Mapping[str, float | None]]]
"""By form: the values of each answer by name, None where it has none."""

_ORDER = ("parallel", "baseline", "original")


class InstrumentSettings(CommandSettings):
    """What is judged."""

    answers: Path = Field(description="file of answers that `answers`, or another command, wrote")
    out: Path = Field(description="folder of the result; a run that was interrupted goes on from what it has")


def read_forms(path: Path, needed: Sequence[str] = ()) -> tuple[dict[str, Any], Forms]:
    """What a file is answers to, and its answers (of each pass).

    Raises:
        InvalidRequestError: It cannot be read, a needed form is missing, or a prompt in some form.
    """
    identity, answers = read_answers(path)
    forms = grouped(answers, lambda one: one.method)
    places = {tuple((one.prompt, one.number) for one in own) for own in forms.values()}
    known = next(iter(places))
    prompts, passes = ({*one} for one in zip(*known, strict=True))
    count = identity.get("count", len(prompts)) * identity.get("passes", len(passes))
    if len(places) > 1 or len(known) != count or {*identity.get("forms", forms)} != forms.keys():
        raise InvalidRequestError(f"{path} is not whole: give the command that made it again, and it goes on")
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
    prompts = prompts_of(next(iter(forms.values())))
    promised = [one.promises > 0 for one in forms.get("parallel", ())]
    names = [*next(iter(figures.values()))[0]]
    values = {form: {name: [one[name] for one in own] for name in names} for form, own in figures.items()}
    differences: dict[str, Any] = {}
    for one, other in combinations(known, 2):
        gains = {name: _paired(values[one][name], values[other][name]) for name in names}
        differences[f"{one} - {other}"] = {name: of_known(gain, own, prompts) for name, own in gains.items()}
        if one == "parallel" and other == "baseline" and any(promised):
            differences["where promised"] = {
                name: of_known(gain, [*compress(own, promised)], [*compress(prompts, promised)])
                for name, own in gains.items()
            }
    methods = {
        form: {
            "prompts": len({*prompts}),
            **{name: of_known(_level, values[form][name], prompts) for name in names},
        }
        for form in forms
    }
    return {"methods": methods, "differences": differences}


def _paired(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    pairs = zip(ours, theirs, strict=True)
    return [None if one is None or other is None else one - other for one, other in pairs]


def _level(values: Sequence[float], *, clusters: Sequence[int]) -> Estimate:
    if {*values} <= {0, 100}:
        return share([value == 100 for value in values], clusters=clusters)
    return estimate(values, "arithmetic", clusters=clusters)


def table(found: dict[str, Any], form: str = ".1f", head: str = "") -> str:
    """What `compared` found as a table: a row for each form, then the differences with their bounds."""
    names = list(next(iter(found["methods"].values())))[1:]
    rows = [
        {head: label, "prompts": own["prompts"], **{name: format_estimate(own[name], form) for name in names}}
        for label, own in found["methods"].items()
    ]
    rows += [
        {head: label, "prompts": None, **{name: format_gain(own.get(name), form) for name in names}}
        for label, own in found["differences"].items()
    ]
    return markdown_table(rows)


def instrument(
    settings: type[S],
    measure: Callable[[S, Forms], dict[str, Any]],
    program: str,
    description: str | None,
    *,
    needed: Sequence[str] = (),
    tables: Callable[[dict[str, Any]], str] = table,
    resumes: bool = False,
) -> Command:
    """The `main` of an instrument: see `command`.

    It reads the answers, of which the `needed` forms have to be there, measures, writes `result.json` with
    the program's name as its `benchmark`, and prints `tables` of it.
    """

    def run(given: S) -> str:
        identity, forms = read_forms(given.answers, needed)
        result = {"benchmark": program, "answers": identity, **measure(given, forms)}
        write_result(given.out, result)
        return tables(result)

    return command(settings, run, program, description, positional=("answers",), resumes=resumes)
