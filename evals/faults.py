"""Faults of answers, counted by a program: how many answers, and how many of their promises, have each.

    python -m pasta_async.evals.faults results/alpaca/answers.jsonl --out results/faults

`pasta_async.training.faults` says what is counted.
"""

from __future__ import annotations

from typing import Any

from pasta_async.cli.command import Command
from pasta_async.evals.answers import Answer, prompts_of
from pasta_async.evals.instruments import Forms, InstrumentSettings, compared, instrument, table
from pasta_async.evals.records import markdown_table
from pasta_async.lang import parse
from pasta_async.training.faults import OF_ANSWERS, OF_PROMISES, Faults, count_faults, soundness
from pasta_async.training.statistics import Estimate, format_estimate, ratio


def measure(_: InstrumentSettings, forms: Forms) -> dict[str, Any]:
    """Each fault of answers, `any`, and `soundness` in percent: see `compared`.

    Besides, by form and fault, the share of the `promises` that have it, None without promises.
    """
    counts = {form: [_count(one) for one in own] for form, own in forms.items()}
    figures = {form: [_figures(one) for one in own] for form, own in counts.items()}
    promises = {form: _of_promises(own, prompts_of(forms[form])) for form, own in counts.items()}
    return {**compared(forms, figures), "promises": promises}


def _count(one: Answer) -> Faults:
    return count_faults(parse(one.written), one.question, well_formed=one.well_formed, cut=one.cut)


def _figures(found: Faults) -> dict[str, float]:
    each = {name: 100.0 * (getattr(found, name) > 0) for name in (*OF_ANSWERS, *OF_PROMISES)}
    return {
        **each,
        "any": 100.0 * (found != Faults(promises=found.promises)),
        "soundness": 100 * soundness(found),
    }


def _of_promises(counts: list[Faults], prompts: list[int]) -> dict[str, Estimate | None]:
    totals = [one.promises for one in counts]
    return {
        name: ratio([getattr(one, name) for one in counts], totals, clusters=prompts) for name in OF_PROMISES
    }


def tables(found: dict[str, Any]) -> str:
    """The result as two tables: of answers, and of the promises of those forms that have some."""
    promises = [
        {"% of promises": form, **{name: format_estimate(own[name]) for name in OF_PROMISES}}
        for form, own in found["promises"].items()
        if any(own.values())
    ]
    return "\n\n".join(filter(None, (table(found, head="% of answers"), markdown_table(promises))))


main: Command = instrument(InstrumentSettings, measure, "faults", __doc__, tables=tables)

if __name__ == "__main__":
    main()
