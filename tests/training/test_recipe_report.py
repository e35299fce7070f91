"""The report of a run: tables, a plot, the best point, what dominates what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_async.evals.report import Model, best, main, unbeaten
from pasta_async.training.recipe import find_recipe, read_recipe
from pasta_async.training.run import Plan

PNG = b"\x89PNG"


def about(value: float, width: float = 1.0) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def figures(score: float, speedup: float | None, tokens: float) -> dict[str, Any]:
    own: dict[str, Any] = {
        "prompts": 50,
        "score": about(score),
        "right": about(score - 10),
        "text_tokens": tokens,
        "tokens": tokens + 9,
        "critical_path": 30.0,
        "promises": 2.0,
        "parallel": about(80),
        "synced": about(40),
        "malformed": about(0, 0),
        "cut_by_length": about(0, 0),
    }
    if speedup is not None:
        own |= {
            "theoretical_speedup": about(speedup, 0.1),
            "length_matched_speedup": about(speedup * 0.9, 0.1),
            "difference": {**about(score - 90), "bound": score - 91},
            "baseline": figures(90, None, 60.0),
        }
    return own


def result(score: float, speedup: float | None, tokens: float = 60.0) -> dict[str, Any]:
    own = figures(score, speedup, tokens)
    return {"backend": "local:x", "all": own, "by_family": {"describe": own, "chain": own}}


FOUND = {
    "stage1/baseline": (90.0, None),
    "stage1/noisy": (80.0, 1.5),
    "stage1/ceiling": (91.0, 1.8),
    "stage1/points": (70.0, 1.4),
    "round1/lambda1": (79.0, 1.9),
    "round1/lambda8": (90.0, 1.6),
    "round2/lambda1": (84.0, 2.2),
    "round2/lambda8": (89.5, 1.7),
    "round2/lambdainf": (92.0, 1.3),
}


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A run of which some models were measured, as `training.run` leaves it."""
    plan = Plan(read_recipe(find_recipe("pasta-tiny")), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(plan.described()))
    for step in plan.steps.values():
        kind, _, model = step.name.partition("/")
        if kind == "evaluation" and model in FOUND:
            step.result.parent.mkdir(parents=True, exist_ok=True)
            step.result.write_text(json.dumps(result(*FOUND[model])))
            record = tmp_path / f"steps/{step.name}.json"
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps({"finished": True, "seconds": 90.0}))
    return tmp_path


def test_the_report_of_what_was_measured_so_far(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(measured)])
    assert not left.value.code
    report = measured / "report"
    assert str(report / "report.md") in capsys.readouterr().out
    plot = (report / "frontier.png").read_bytes()
    assert plot.startswith(PNG)
    tables = (report / "report.md").read_text()
    assert "The best point is round 2, λ = 8: speed-up 1.70 (1.60 to 1.80)" in tables
    assert "| round 2, λ = ∞ | 50 | 92.0 (91.0 to 93.0) | +2.0 (+1.0 to +3.0) |" in tables
    assert "| round 2, λ = 4 |" not in tables
    assert "| all | 50 | 9 | 13.5 |" in tables  # 90 seconds each
    with pytest.raises(SystemExit):
        main([str(measured)])
    assert (report / "report.md").read_text() == tables
    assert (report / "frontier.png").read_bytes() == plot


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path)])
    assert str(left.value.code).startswith("InvalidRequestError")


def test_no_point_of_the_frontier_is_beaten_by_another() -> None:
    places = [(1.0, 50.0), (1.4, 52.0), (1.4, 51.0), (2.0, 45.0), (1.9, 44.0)]
    assert unbeaten(places) == [(1.4, 52.0), (2.0, 45.0)]


def test_there_is_no_report_before_there_is_something_to_compare(measured: Path) -> None:
    for record in (measured / "steps/evaluation").rglob("*.json"):
        if record.stem != "baseline":
            record.unlink()
    with pytest.raises(SystemExit) as left:
        main([str(measured)])
    assert not left.value.code
    assert not (measured / "report").exists()


def model(score: float, speedup: float, candidate: bool = True) -> Model:
    return Model("round 1", result(score, speedup), candidate=candidate)


def test_the_best_point_is_the_fastest_that_is_not_worse_by_more_than_the_margin() -> None:
    fast, good, better = model(85, 3), model(89.5, 2), model(95, 1.5)
    assert best([fast, good, better], 2) is good
    assert best([fast, good, better], 1) is better
    assert best([fast, good, better], 6) is fast
    assert best([fast, model(99, 4, candidate=False), better], 2) is better
    assert best([fast], 2) is None
    few = model(99, 4)
    few.figures["difference"]["bound"] = None
    assert best([few, better], 2) is better, "too few prompts to say"
    cut = model(99, 5)
    cut.figures["theoretical_speedup"] = None
    assert best([cut, better], 2) is better, "a limit ended all of its answers"
