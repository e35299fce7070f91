"""Faults of answers, counted by a program: how many answers, and how many of their promises, have each.

    python -m pasta_async.evals.faults results/alpaca/answers.jsonl --out results/faults

`pasta_async.training.faults` says what is counted.
"""

from __future__ import annotations

from typing import Any

from pasta_async.cli.command import Command, command
from pasta_async.evals.answers import prompts_of
from pasta_async.evals.instruments import Figures, Forms, InstrumentSettings, compared, read_forms, table
from pasta_async.evals.records import markdown_table, write_result
from pasta_async.lang import parse
from pasta_async.training.faults import OF_ANSWERS, OF_PROMISES, Faults, count_faults, soundness
from pasta_async.training.statistics import format_estimate, ratio


def measure(forms: Forms) -> dict[str, Any]:
    """The faults of answers in percent: see `compared`.

    Returns:
        Of each fault, of `any` and of `soundness`; and by form and fault the share of the `promises` that
        have it, None without promises.
    """
    counts = {
        form: [
            count_faults(parse(one.written), one.question, well_formed=one.well_formed, cut=one.cut)
            for one in own
        ]
        for form, own in forms.items()
    }
    figures: Figures = {
        name: {form: [100.0 * (getattr(one, name) > 0) for one in own] for form, own in counts.items()}
        for name in (*OF_ANSWERS, *OF_PROMISES)
    }
    figures["any"] = {
        form: [100.0 * (one != Faults(promises=one.promises)) for one in own] for form, own in counts.items()
    }
    figures["soundness"] = {form: [100 * soundness(one) for one in own] for form, own in counts.items()}
    promises = {
        form: {
            name: ratio(
                [getattr(one, name) for one in own],
                [one.promises for one in own],
                clusters=prompts_of(forms[form]),
            )
            for name in OF_PROMISES
        }
        for form, own in counts.items()
    }
    return {**compared(forms, figures), "promises": promises}


def _run(settings: InstrumentSettings) -> str:
    identity, forms = read_forms(settings.answers)
    found = measure(forms)
    write_result(settings.out, {"benchmark": "faults", "answers": identity, **found})
    of_promises = [
        {"% of promises": form, **{name: format_estimate(own[name]) for name in OF_PROMISES}}
        for form, own in found["promises"].items()
        if any(own.values())
    ]
    return "\n\n".join(filter(None, (table(found, head="% of answers"), markdown_table(of_promises))))


main: Command = command(InstrumentSettings, _run, "faults", __doc__, positional=("answers",))

if __name__ == "__main__":
    main()
