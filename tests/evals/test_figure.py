"""Pictures: who is in them, and what stands on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer
from pasta_async.evals.figure import frontier, main, seconds_by_method
from tests.helpers.commands_run import failed, run, write_rows


def answers() -> list[Answer]:
    rows = [Answer(prompt, "pasta", seconds=prompt + 1.0) for prompt in range(12)]
    rows += [Answer(prompt, "sequential", number, seconds=4.0) for prompt in range(11) for number in range(2)]
    return [*rows, Answer(11, "sequential", seconds=1.0, finish_reason="length")]


def test_only_prompts_with_a_whole_answer_by_every_method_count() -> None:
    seconds = seconds_by_method(answers())
    assert seconds == {"pasta": [prompt + 1.0 for prompt in range(11)], "sequential": [4.0] * 11}
    with pytest.raises(InvalidRequestError):
        seconds_by_method([Answer(0, "pasta"), Answer(1, "sequential")])


def test_seconds_are_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "rows.jsonl", tmp_path / "seconds.svg"
    write_rows(file, [{}, *map(asdict, answers())])
    run(main, "--title quiet --answers", file, "--out", picture)
    drawn = picture.read_text()
    assert all(text in drawn for text in ("quiet", "PASTA", "in sequence", "4 s", "11 prompts"))
    assert failed(main, "--answers", tmp_path / "none.jsonl", "--out", picture)
    for untimed in ({"together": 64}, {"benchmark": "load"}):
        write_rows(file, [untimed, *map(asdict, answers())])
        assert "times no answers alone" in failed(main, "--answers", file, "--out", picture)


def write_scores(path: Path, prompts: range, **score: float) -> Path:
    rows: list[dict[str, Any]] = [{"id": f"p{prompt}", "number": 0, **score} for prompt in prompts]
    write_rows(path, rows)
    return path


def test_a_frontier_compares_models_over_the_prompts_that_all_have(tmp_path: Path) -> None:
    slow = write_scores(tmp_path / "slow.jsonl", range(12), speedup=1, quality=0.9)
    fast = write_scores(tmp_path / "fast.jsonl", range(1, 13), speedup=2, quality=0.5)
    with fast.open("a") as file:  # nobody knows how long this answer would have been
        file.write('{"id": "p3", "number": 1, "speedup": 9, "quality": 0.5, "ended": false}\n')
    prompts, points = frontier([slow, fast])
    assert prompts == 11
    means = {name: (speedup["value"], quality["value"]) for name, (speedup, quality) in points.items()}
    assert means == {"slow": pytest.approx((1, 0.9)), "fast": pytest.approx((2, 0.5))}


def test_a_frontier_is_drawn(tmp_path: Path) -> None:
    files = [
        write_scores(tmp_path / f"{name}.jsonl", range(3), speedup=2, quality=1) for name in ("one", "two")
    ]
    run(main, "--scores", files[0], "--scores", files[1], "--out", tmp_path / "frontier.svg")
    drawn = (tmp_path / "frontier.svg").read_text()
    assert all(text in drawn for text in ("one", "two", "3 prompts"))


def test_models_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "scores.jsonl", range(3), speedup=2, quality=1)
    others = write_scores(tmp_path / "others.jsonl", range(3, 6), speedup=2, quality=1)
    with pytest.raises(InvalidRequestError, match="prompt"):
        frontier([scores, others])
    with pytest.raises(InvalidRequestError, match="scores"):
        frontier([scores, scores])
    assert failed(main, "--out", tmp_path / "none.svg")
    assert failed(main, "--answers", scores, "--scores", scores, "--out", tmp_path / "none.svg")
