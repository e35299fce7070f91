"""The command that counts faults, on a file of answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run

from pasta_async.evals.answers import Answer, read_answers
from pasta_async.evals.faults import main
from pasta_async.evals.records import write_rows

if TYPE_CHECKING:
    from pathlib import Path

GOOD = (
    '<promise topic="Tea" tokens="20"/><async>Tea is old.</async> '
    '<promise topic="Coffee" tokens="20"/><async>{}</async>'
)


def answers_file(path: Path) -> Path:
    parallel = [GOOD.format("Coffee is older."), GOOD.format("Tea is old."), GOOD.format("Coffee is")]
    rows = [
        Answer(place, "parallel", written=text, cut=[2] * (place == 2)) for place, text in enumerate(parallel)
    ]
    rows += [
        Answer(place, "baseline", written="Both are good.", well_formed=place < 2) for place in (2, 0, 1)
    ]
    write_rows(path, [{"benchmark": "made up"}, {"environment": {}}, *map(asdict, rows)])
    return path


def test_shares_of_answers_and_of_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    run(main, f"{answers_file(tmp_path / 'answers.jsonl')} --out {out}")
    result = json.loads((out / "result.json").read_text())
    assert result["answers"] == {"benchmark": "made up"}
    parallel, baseline = result["methods"]["parallel"], result["methods"]["baseline"]
    for name in ("repeat", "cut", "off_topic"):
        assert parallel[name]["value"] == pytest.approx(100 / 3)
        assert result["promises"]["parallel"][name]["value"] == pytest.approx(100 / 6)
        assert result["promises"]["baseline"][name] is None
    assert result["promises"]["parallel"]["empty"]["high"] > 0, "none of three is not never"
    assert parallel["any"]["value"] == pytest.approx(200 / 3)
    assert baseline["malformed"]["value"] == baseline["any"]["value"] == pytest.approx(100 / 3)
    assert result["differences"]["parallel - baseline"]["any"]["value"] == pytest.approx(100 / 3)
    assert "| parallel | 3 | " in capsys.readouterr().out


def test_answers_are_read_in_order_of_the_prompts(tmp_path: Path) -> None:
    _, answers = read_answers(answers_file(tmp_path / "answers.jsonl"))
    assert [one.prompt for one in answers if one.method == "baseline"] == [0, 1, 2]


def test_another_file_is_refused(tmp_path: Path) -> None:
    out = f"--out {tmp_path}"
    refused(main, f"{out} {tmp_path / 'missing.jsonl'}")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    refused(main, f"{out} {tmp_path / 'other.jsonl'}")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    refused(main, f"{out} {tmp_path / 'other.jsonl'}")
