"""The command that says how likely a plain model finds answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run

from pasta_async.evals.answers import Answer
from pasta_async.evals.likelihood import main
from pasta_async.evals.records import write_rows
from tests.pasta_tiny import PASTA_TINY

if TYPE_CHECKING:
    from pathlib import Path

TINY = str(PASTA_TINY)
ANSWERS = [
    Answer(0, "baseline", text="Tea is old.", question="Tell me of tea."),
    Answer(0, "parallel", text="Tea is old.", question="Tell me of tea."),
    Answer(1, "baseline", text="Coffee is older.", question="Tell me of coffee."),
    Answer(1, "parallel", text="", promises=1, question="Tell me of coffee."),
]


def test_an_interrupted_run_goes_on_with_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, ANSWERS)])
    told = f"{tmp_path}/answers.jsonl --model {TINY} --out {tmp_path}/out"
    run(main, told)
    first, kept = capsys.readouterr().out, tmp_path / "out" / "bits.jsonl"
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + 3, "the same answer to the same prompt is computed once"
    kept.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9])
    run(main, told)
    assert capsys.readouterr().out == first
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    bits = [json.loads(line)["bits"] for line in lines[1:]]
    tea, coffee = [value for value in bits if value is not None]
    assert 0 < tea < 30 and 0 < coffee < 30
    assert result["methods"]["baseline"]["bits a token"]["value"] == pytest.approx((tea + coffee) / 2)
    assert result["differences"]["parallel - baseline"]["bits a token"]["value"] == 0
    assert result["differences"]["where promised"]["bits a token"] is None, "one answer without text"
    run(main, told)


def test_answers_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, ANSWERS[:3])])
    refused(main, f"{tmp_path}/answers.jsonl --model {TINY} --out {tmp_path}/out")
    refused(main, f"{tmp_path}/missing.jsonl --model {TINY} --out {tmp_path}/out")
