"""The figure of seconds: means over the prompts that every method answered whole."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from commands_run import refused, run, write_rows

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer
from pasta_async.evals.figure import main, seconds_by_method


def answers() -> list[Answer]:
    rows = [Answer(prompt, "pasta", seconds=prompt + 1.0) for prompt in range(12)]
    rows += [Answer(prompt, "sequential", number, seconds=4.0) for prompt in range(11) for number in range(2)]
    return [*rows, Answer(11, "sequential", seconds=1.0, finish_reason="length")]


def test_only_prompts_with_a_whole_answer_by_every_method_count() -> None:
    seconds = seconds_by_method(answers())
    assert seconds == {"pasta": [prompt + 1.0 for prompt in range(11)], "sequential": [4.0] * 11}
    with pytest.raises(InvalidRequestError):
        seconds_by_method([Answer(0, "pasta"), Answer(1, "sequential")])


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "rows.jsonl", tmp_path / "seconds.svg"
    write_rows(file, [{}, *map(asdict, answers())])
    run(main, "--title quiet --answers", file, "--out", picture)
    drawn = picture.read_text()
    assert all(text in drawn for text in ("quiet", "PASTA", "in sequence", "4 s", "11 prompts"))
    assert refused(main, "--answers", tmp_path / "none.jsonl", "--out", picture)
