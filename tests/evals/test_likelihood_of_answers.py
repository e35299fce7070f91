"""The command that says how likely a plain model finds answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run

from pasta_async.evals.answers import Answer
from pasta_async.evals.documents import digest
from pasta_async.evals.likelihood import figures, main
from pasta_async.evals.records import write_rows

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = ["Tell me of tea.", "Tell me of coffee."]
TINY = "pasta_async/models/pasta-tiny"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Answers and their prompts; the first prompt has the same answer twice."""
    answers = [
        Answer(0, "baseline", text="Tea is old."),
        Answer(0, "parallel", text="Tea is old."),
        Answer(1, "baseline", text="Coffee is older."),
        Answer(1, "parallel", text="", promises=1),
    ]
    write_rows(tmp_path / "answers.jsonl", [{"prompts": digest(PROMPTS)}, *map(asdict, answers)])
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": text} for text in PROMPTS])
    return tmp_path


def test_an_interrupted_run_goes_on_with_what_it_has(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = f"--answers {files}/answers.jsonl --prompts {files}/prompts.jsonl --model {TINY} --out {files}/out"
    run(main, told)
    first, kept = capsys.readouterr().out, files / "out" / "bits.jsonl"
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + 3, "the same answer to the same prompt is computed once"
    kept.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9])
    run(main, told)
    assert capsys.readouterr().out == first
    methods = json.loads((files / "out" / "result.json").read_text())["methods"]
    assert methods["baseline"]["bits"]["value"] > 0
    assert methods["parallel"]["difference"]["value"] == 0
    assert (methods["parallel"]["prompts"], methods["parallel"]["left_out"]) == (1, 1)
    run(main, told)


def test_other_prompts_are_refused(files: Path) -> None:
    (files / "other.txt").write_text("Tell me of tea.\nTell me of milk.\n")
    told = f"--answers {files}/answers.jsonl --model {TINY} --out {files}/out"
    assert "other prompts" in refused(main, f"{told} --prompts {files}/other.txt")
    refused(main, f"{told} --prompts {files}/missing.txt")


def test_differences_are_taken_prompt_by_prompt() -> None:
    answers = [Answer(place, form, promises=place) for place in range(2) for form in ("baseline", "parallel")]
    found = figures(answers, [1.0, 1.5, 2.0, 2.25])
    assert found["parallel"]["difference"]["value"] == pytest.approx(0.375)
    assert found["parallel"]["with_promises"]["value"] == pytest.approx(0.25)
    assert found["parallel"]["dearer"]["value"] == 100
    assert "difference" not in found["baseline"]
