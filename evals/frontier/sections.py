"""What a report says of measured models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta_async.evals.frontier import plots
from pasta_async.evals.frontier.models import BEST_RULE, best, dominated_by
from pasta_async.evals.report.sections import Plot, Section
from pasta_async.evals.statistics import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pasta_async.evals.frontier.models import Measured
    from pasta_async.evals.statistics import Estimate

    Speedup = Callable[[Measured], Estimate | None]

__all__ = ["sections"]

_LENGTHS = (
    "Shorter answers look faster. The length-matched speed-up compares with a sequential answer of the same "
    "text: its tokens (and the one that ends it) / the critical path."
)


def sections(found: Sequence[Measured], baseline: dict[str, Any]) -> list[Section]:
    """The frontier, rounds, lengths, and what each family of prompts is answered like.

    Args:
        found: The models, group by group.
        baseline: The sequential model's result.
    """
    elected = [model for model in found if model.elected]
    parts = [_frontier(found, baseline)]
    if len(elected) > 1:
        says = "; ".join(f"{m.label}: {told(m.speedup, '.2f')}, {told(m.score)}%" for m in elected)
        parts.append(Section("What the rounds do", [], [Plot("rounds", says, plots.rounds(elected))]))
    parts += [_lengths(found, baseline), _families(found, baseline)]
    return parts


def _frontier(found: Sequence[Measured], baseline: dict[str, Any]) -> Section:
    section = Section("Score against speed-up", [_words(found, baseline)])
    kinds: list[tuple[str, str, Speedup]] = [
        ("frontier", "theoretical speed-up", lambda model: model.speedup),
        ("frontier-length-matched", "length-matched theoretical speed-up", lambda m: m.length_matched),
        ("frontier-wall-clock", "speed-up by wall clock", lambda model: model.wall_clock),
    ]
    for name, axis, speedup in kinds:
        shown = [model for model in found if speedup(model)]
        says = "; ".join(f"{m.label}: {told(speedup(m), '.2f')}, {told(m.score)}%" for m in shown)
        if shown:
            drawing = plots.frontier(shown, baseline["all"]["score"], speedup, axis)
            section.plots.append(Plot(name, says, drawing))
    section.tables.append(("95% intervals in brackets", [_baseline_row(baseline), *map(_row, found)]))
    if beaten := [*_beaten(found)]:
        section.tables.append(("Who is beaten in both", beaten))
    return section


def _words(found: Sequence[Measured], baseline: dict[str, Any]) -> str:
    chosen = best(found)
    own = baseline["all"]
    words = f"The sequential baseline's score is {told(own['score'])}%. {BEST_RULE}"
    if chosen is None:
        return words
    return (
        f"{words} It is {chosen.label} ({chosen.name}): speed-up {told(chosen.speedup, '.2f')}, "
        f"score {told(chosen.score)}%, {told(chosen.difference, '+.1f')} points from the baseline's."
    )


def _row(model: Measured) -> dict[str, Any]:
    own = model.result["all"]
    return {
        "": model.label,
        "score %": told(model.score),
        "to the baseline": told(model.difference, "+.1f"),
        "all right %": told(own["right"]),
        "theoretical speed-up": told(model.speedup, ".2f"),
        "length-matched": told(model.length_matched, ".2f"),
        "wall clock": told(model.wall_clock, ".2f"),
        "text tokens": own["text_tokens"],
        "promises": own["promises"],
        "malformed %": own["malformed"]["value"],
    }


def _baseline_row(baseline: dict[str, Any]) -> dict[str, Any]:
    own = baseline["all"]
    return {
        "": "sequential baseline",
        "score %": told(own["score"]),
        "to the baseline": "-",
        "all right %": told(own["right"]),
        "theoretical speed-up": "1",
        "length-matched": "1",
        "wall clock": "1",
        "text tokens": own["text_tokens"],
        "promises": 0.0,
        "malformed %": own["malformed"]["value"],
    }


def _beaten(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """For each model of stage 1, those of stage 2 that are at least as good and as fast."""
    later = [model for model in found if model.round]
    for model in found:
        if not model.round:
            ahead = dominated_by(model, later)
            yield {"": model.label, "beaten by": "; ".join(other.label for other in ahead) or "none"}


def _lengths(found: Sequence[Measured], baseline: dict[str, Any]) -> Section:
    own = baseline["all"]["text_tokens"]
    says = "; ".join(f"{m.label}: {m.result['all']['text_tokens']:.1f} tokens" for m in found)
    drawing = plots.lengths(found, own)
    return Section("Lengths", [_LENGTHS], [Plot("lengths", f"sequential: {own:.1f}; {says}", drawing)])


def _families(found: Sequence[Measured], baseline: dict[str, Any]) -> Section:
    words = "Which prompts are answered in parallel is what stage 2 can learn beside how long answers are."
    section = Section("By family of prompts", [words])

    def rows(name: str, form: str, models: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [
            {"": label, **{f: format(own[name]["value"], form) for f, own in result["by_family"].items()}}
            for label, result in models
        ]

    models = [(model.label, model.result) for model in found]
    every = [("sequential baseline", baseline), *models]
    section.tables += [
        ("Answers with a promise, %", rows("parallel", ".0f", models)),
        ("Answers with a sync, %", rows("synced", ".0f", models)),
        ("Score, %", rows("score", ".1f", every)),
        ("Theoretical speed-up", rows("theoretical_speedup", ".2f", models)),
    ]
    return section
