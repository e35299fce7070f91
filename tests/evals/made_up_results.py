"""Result files of every kind, with figures that nobody measured."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pasta_async.evals.answers import FORMS, Answer
from pasta_async.evals.documents import held_out
from pasta_async.evals.frontier import outcome
from pasta_async.evals.load import Block

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pasta_async.evals.load import Mode

ENVIRONMENT = {"time": "2026-01-01 00:00:00 UTC", "cpu": "Imaginary 1", "cores": 2, "load": 0.5}


def estimate(value: float, by: float) -> dict[str, float]:
    return {"value": value, "low": value - by, "high": value + by}


def alpaca(win_rate: float, speedup: float) -> dict[str, Any]:
    return {
        "benchmark": "alpaca",
        "backend": "http://127.0.0.1:30000",
        "prompts": 60,
        "judge": {"model": "made-up judge"},
        "length_control": "length_controlled_minimal",
        "versions": {"alpaca_eval": "0.6.6"},
        "environment": ENVIRONMENT,
        "win_rate": estimate(win_rate + 1, 3),
        "length_controlled_win_rate": {**estimate(win_rate, 3), "draws": 200},
        "mean_length": {"parallel": 900.0, "baseline": 950.0},
        "malformed": 0.01,
        "theoretical_speedup": estimate(speedup, 0.1),
        "by_dataset": [{"dataset": "koala", "prompts": 60, "win_rate": estimate(win_rate, 4)}],
    }


def frontier() -> dict[str, Any]:
    prompts = held_out(["describe", "chain"], 8)
    parallel, baseline = (
        [
            Answer(n, form, tokens=60, critical_path=42 + n, promises=2, text_tokens=50)
            for n in range(len(prompts))
        ]
        for form in ("parallel", "baseline")
    )
    grades = [float(n != 3) for n in range(len(prompts))]
    head = {"benchmark": "frontier", "backend": "local:", "environment": ENVIRONMENT}
    return {**head, **outcome(prompts, parallel, grades, (baseline, [1.0] * len(prompts)))}


def ifeval() -> dict[str, Any]:
    gain = {**estimate(10, 5), "bound": 6.0}
    return {
        "benchmark": "ifeval",
        "environment": ENVIRONMENT,
        "methods": {form: {"prompts": 20, "strict": estimate(40, 9)} for form in ("baseline", "parallel")},
        "differences": {"parallel - baseline": {"strict": gain}},
    }


def runs() -> Iterable[Answer]:
    draw = random.Random(0)
    for prompt in range(40):
        tokens, critical = draw.randrange(150, 400), draw.randrange(90, 150)
        for form, length, faster in zip(FORMS, (tokens, critical), (1.0, 0.88), strict=True):
            seconds = length / 100 / faster * draw.uniform(0.97, 1.05)
            yield Answer(
                prompt=prompt,
                family="describe",
                method=form,
                number=0,
                seconds=seconds,
                first_token=0.02,
                tokens=tokens,
                critical_path=length,
                cached_tokens=30,
                prefilled_tokens=70,
                requests=3,
                well_formed=True,
                text="text",
            )


def blocks() -> Iterable[Block]:
    draw = random.Random(2)
    loads: dict[Mode, tuple[float, ...]] = {"closed": (1, 4, 16, 64), "open": (0.5, 1, 2)}
    for mode, levels in loads.items():
        for level in levels:
            for name, share, cost in (("sequential", 1.0, 1.0), ("pasta", 0.6, 1.5)):
                seconds = 2 * share * (1 + cost * level / 24)
                answers = tuple(
                    Answer(n, name, seconds=seconds * draw.uniform(0.8, 1.4), first_token=0.05, tokens=200)
                    for n in range(16)
                )
                arrived = tuple(n * seconds / level for n in range(16))
                yield Block(mode, float(level), name, 16 * seconds / level, arrived, answers)


def write_results(folder: Path) -> dict[str, Path]:
    """A file of each kind, and their paths by kind."""
    rows = {"speed": runs(), "load": blocks()}
    written = {name: folder / f"{name}.jsonl" for name in rows}
    for name, path in written.items():
        head = [{"benchmark": name, "backend": "local:"}, {"environment": ENVIRONMENT}]
        path.write_text("".join(json.dumps(row) + "\n" for row in [*head, *map(asdict, rows[name])]))
    objects = {
        "alpaca": alpaca(51.5, 1.4),
        "fast": alpaca(47, 1.8),
        "slow": alpaca(46, 1.2),
        "frontier": frontier(),
        "ifeval": ifeval(),
    }
    for name, content in objects.items():
        written[name] = folder / name / "result.json"
        written[name].parent.mkdir()
        written[name].write_text(json.dumps(content))
    return written
