"""What timed answers in both forms come to: speed-ups with intervals, and what went wrong in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

from pasta_async.evals.answers import FORMS, Answer, by_prompt, compare, of_form, prompts_of
from pasta_async.lang import STYLE_CODES, Code, parse
from pasta_async.training.faults import count_faults
from pasta_async.training.statistics import Estimate, estimate, format_estimate, share


class Mean(TypedDict):
    """A geometric mean over prompts."""

    estimate: Estimate | None
    """None where there is no prompt."""
    prompts: int


class Overview(TypedDict):
    """The figures of some answers. No speed-up counts an answer that a limit ended."""

    means: dict[str, Mean]
    """Speed-ups, and times of a token in milliseconds, by name."""
    shares: dict[str, Estimate | None]
    """Of the parallel answers, in percent, over prompts."""
    counts: dict[str, list[int]]
    """By name: of the parallel answers, then of the plain ones where they can have it too."""


def overview(rows: Sequence[Answer]) -> dict[str, Overview]:
    """The figures over `all prompts`, and over the answers `with promises` and the plain ones beside them."""
    promised = {(row.prompt, row.number) for row in rows if row.method == "parallel" and row.promises}
    beside = [row for row in rows if (row.prompt, row.number) in promised]
    return {"all prompts": _overview(rows), "with promises": _overview(beside)}


def overview_table(found: dict[str, Overview]) -> list[dict[str, Any]]:
    """The figures as rows: each mean with the prompts that it is over; counts as `parallel / plain`."""
    cells = {group: _cells(own) for group, own in found.items()}
    names = cells["all prompts"]
    return [{"": name, **{group: own.get(name, "-") for group, own in cells.items()}} for name in names]


def _cells(own: Overview) -> dict[str, str]:
    means = {name: _mean_cell(mean) for name, mean in own["means"].items()}
    shares = {f"{name}, %": format_estimate(one) for name, one in own["shares"].items()}
    return means | shares | {name: " / ".join(map(str, each)) for name, each in own["counts"].items()}


def _mean_cell(mean: Mean) -> str:
    found = mean["estimate"]
    return f"{format_estimate(found, '.2f')}, n = {mean['prompts']}" if found else "-"


def _overview(rows: Sequence[Answer]) -> Overview:
    plain, parallel = (of_form(rows, form) for form in FORMS)
    others = [name for name in dict.fromkeys(row.method for row in rows) if name not in FORMS]
    return {
        "means": {**_means(rows, plain, parallel), **_beside(rows, others)},
        "shares": {
            "answers with promises": _share(parallel, lambda row: row.promises > 0),
            # nothing to say about their tags but advice about style
            "answers without a fault in their tags": _share(
                parallel, lambda row: STYLE_CODES.issuperset(row.complaints)
            ),
        },
        "counts": _counts(plain, parallel),
    }


def _means(rows: Sequence[Answer], plain: Sequence[Answer], parallel: Sequence[Answer]) -> dict[str, Mean]:
    pairs = compare(rows)
    whole = [row for row in parallel if not row.ended_by_length]
    pace = _mean_by_prompt(plain, _token_ms)
    plain_ms = pace["estimate"]["value"] if pace["estimate"] else 0.0
    return {
        "measured: plain s / parallel s": _mean(one.speedup for one in pairs),
        "measured: own text at a plain token's pace / parallel s": _mean_by_prompt(
            whole if plain_ms else [], lambda row: row.whole_text_tokens * plain_ms / 1000 / row.seconds
        ),
        "plain tokens / critical path": _mean(one.theoretical for one in pairs),
        "measured / (plain tokens / critical path)": _mean(one.speedup / one.theoretical for one in pairs),
        "own tokens / critical path": _mean_by_prompt(whole, lambda row: row.tokens / row.critical_path),
        "own text's tokens / critical path": _mean_by_prompt(
            whole, lambda row: row.whole_text_tokens / row.critical_path
        ),
        "ms a token of the critical path": _mean_by_prompt(parallel, _token_ms),
        "ms a plain token": pace,
    }


def _beside(rows: Sequence[Answer], others: Sequence[str]) -> dict[str, Mean]:
    """Other ways to a plain answer: asked to be brief, or the same one written by another engine."""
    found = dict[str, Mean]()
    for name in others:
        for form, label in zip(FORMS, ("plain", "parallel"), strict=True):
            found[f"{name} s / {label} s"] = _mean(one.speedup for one in compare(rows, form, name))
        found[f"ms a token, {name}"] = _mean_by_prompt(of_form(rows, name), _token_ms)
    return found


def _token_ms(row: Answer) -> float:
    return 1000 * row.seconds / row.critical_path


def _counts(plain: Sequence[Answer], parallel: Sequence[Answer]) -> dict[str, list[int]]:
    both = parallel, plain
    faults = [[count_faults(parse(row.written), cut=row.cut) for row in each] for each in both]
    nested = [row.complaints.get(Code.PROMISE_NESTED, 0) for row in parallel]
    topics = [one.same_topic for one in faults[0]]
    return {
        "answers": [len(each) for each in both],
        "ended by length": [sum(row.ended_by_length for row in each) for each in both],
        "that repeat themselves": [sum(one.loop for one in each) for each in faults],
        "promises": [sum(row.promises for row in parallel)],
        "promises inside chunks": [sum(nested)],
        "answers with one": [sum(map(bool, nested))],
        "promises with the topic of an earlier one": [sum(topics)],
        "answers with such a promise": [sum(map(bool, topics))],
        "chunks that a limit ended": [sum(len(row.cut) for row in parallel)],
    }


def _share(rows: Sequence[Answer], holds: Callable[[Answer], bool]) -> Estimate | None:
    """The share of answers, in percent; prompts are drawn, not answers."""
    return share([holds(row) for row in rows], clusters=prompts_of(rows)) if rows else None


def _mean(values: Iterable[float]) -> Mean:
    given = [*values]
    return {"estimate": estimate(given) if given else None, "prompts": len(given)}


def _mean_by_prompt(rows: Sequence[Answer], value: Callable[[Answer], float]) -> Mean:
    """Over all prompts, each with the mean of its passes."""
    return _mean(by_prompt([row for row in rows if row.critical_path], value).values())
