"""Answers as the files that AlpacaEval's own command reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from commands_run import refused, run

from pasta_async.evals.alpaca import main

if TYPE_CHECKING:
    from pathlib import Path


def answers(path: Path, questions: list[str]) -> Path:
    rows = [
        {"prompt": place, "method": form, "question": text, "text": f"{form} {place}", "family": "koala"}
        for place, text in enumerate(questions)
        for form in ("baseline", "parallel")
    ]
    head = {"count": len(questions), "forms": ["baseline", "parallel"]}
    path.write_text("".join(json.dumps(row) + "\n" for row in [head, *rows]))
    return path


def test_a_file_of_each_form_in_order_of_the_prompts(tmp_path: Path) -> None:
    run(main, "", answers(tmp_path / "answers.jsonl", ["Why?", "What?"]), "--out", tmp_path / "out")
    for form in ("baseline", "parallel"):
        outputs = json.loads((tmp_path / "out" / f"{form}.json").read_text())
        assert [one["instruction"] for one in outputs] == ["Why?", "What?"]
        assert [one["output"] for one in outputs] == [f"{form} 0", f"{form} 1"]
        assert {one["generator"] for one in outputs} == {form}
        assert {one["dataset"] for one in outputs} == {"koala"}


def test_a_prompt_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    path = answers(tmp_path / "answers.jsonl", ["Why?", "Why?"])
    assert refused(main, "", path, "--out", tmp_path / "out").startswith("InvalidRequestError")
