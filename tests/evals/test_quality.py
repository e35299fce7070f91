"""Answers in several forms, judged and compared prompt by prompt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pasta_async.errors import BackendStatusError
from pasta_async.evals.answers import Answer
from pasta_async.evals.quality import main
from pasta_async.training.judging import Judge
from pasta_async.training.samples import SampledPrompt
from tests.helpers.chat_server import judging
from tests.helpers.commands_run import failed, run, write_rows
from tests.pasta_tiny import PASTA_TINY

FAULTY = (
    '<promise topic="Tea" tokens="20"/><async>Tea is old.</async> '
    '<promise topic="Coffee" tokens="20"/><async>{}</async>'
)


class Longer(Judge):
    """Finds the longer answer better, and refuses what is said of coffee."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        if "Coffee" in text:
            raise BackendStatusError("it is too long", status=400)
        other = prompt.baseline.text
        if len(text) == len(other):
            return 0.5
        return 1.0 if len(text) > len(other) else 0.0


def judged(path: Path, rows: list[Answer], more: str = "", **identity: Any) -> dict[str, Any]:
    """The result for a file of answers."""
    write_rows(path / "answers.jsonl", [{"made": "up", **identity}, {"environment": {}}, *map(asdict, rows)])
    run(main, f"--answers {path}/answers.jsonl {more} --out {path}/out")
    return json.loads((path / "out" / "result.json").read_text())


def test_each_form_is_compared_with_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"baseline": "Tea is old.", "parallel": "Tea is very old."}
    rows = [
        Answer(number, form, text=text, question=f"Prompt {number}")
        for number in range(12)
        for form, text in texts.items()
    ]
    other = [Answer(number, "baseline", text="Tea.", question=f"Prompt {number}") for number in range(13)]
    write_rows(tmp_path / "base.jsonl", [{}, *map(asdict, other)])
    result = judged(tmp_path, rows, f"--judge {__name__}:Longer --original {tmp_path}/base.jsonl")
    assert result["answers"]["of each form"] == 12
    figures = result["figures"]
    assert [(name, column["judge, %"]["value"]) for name, column in figures.items()] == [
        ("parallel", 100),
        ("baseline", 50),
        ("original", 0),
        ("parallel - baseline", 50),
        ("parallel - original", 100),
        ("baseline - original", 50),
    ]
    assert figures["parallel - baseline"]["judge, %"]["bound"] is None, "no two prompts differ"
    assert "| judge, % | 100 (75.8 to 100) | 50 |" in capsys.readouterr().out
    for form, text in {**texts, "original": "Tea."}.items():
        exported = json.loads((tmp_path / "out" / "alpaca" / f"{form}.json").read_text())
        assert exported[7] == {"instruction": "Prompt 7", "output": text, "generator": form}
    write_rows(tmp_path / "base.jsonl", [{}, *(asdict(Answer(n, "baseline")) for n in range(12))])
    command = f"--answers {tmp_path}/answers.jsonl --original {tmp_path}/base.jsonl --out {tmp_path}/out"
    assert "other prompts" in failed(main, command)


def test_an_answer_that_the_judge_refuses_is_counted_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"baseline": "Tea is old.", "parallel": "Tea is very old."}
    rows = [Answer(number, form, text=text) for number in range(12) for form, text in texts.items()]
    rows[1] = Answer(0, "parallel", text="Coffee is much older.")
    result = judged(tmp_path, rows, f"--judge {__name__}:Longer")
    assert "BackendStatusError: it is too long" in capsys.readouterr().err
    figures = result["figures"]
    assert figures["parallel - baseline"]["judge, %"]["value"] == 50
    assert figures["baseline"]["judge, %"]["value"] == 50
    write_rows(
        tmp_path / "b.jsonl", [{"made": "up"}, *(asdict(Answer(0, form, text="Coffee!")) for form in texts)]
    )
    command = f"--answers {tmp_path}/b.jsonl --judge {__name__}:Longer --out {tmp_path}/b"
    assert "1 of 1 answers have no verdict" in failed(main, command)


def test_faults_are_counted_in_every_file_of_answers(tmp_path: Path) -> None:
    parallel = [FAULTY.format("Coffee is older."), FAULTY.format("Tea is old."), FAULTY.format("Coffee is")]
    rows = [
        Answer(number, "parallel", written=text, cut=[2] if number == 2 else [], promises=2)
        for number, text in enumerate(parallel)
    ]
    rows += [
        Answer(number, "baseline", written="Both are good.", well_formed=number < 2) for number in (2, 0, 1)
    ]
    result = judged(tmp_path, rows)
    tagged, plain = result["figures"]["parallel"], result["figures"]["baseline"]
    for name in ("repeat", "cut", "off_topic"):
        assert tagged[name]["value"] == pytest.approx(100 / 3)
    assert tagged["any fault"]["value"] == pytest.approx(200 / 3)
    assert tagged["empty"]["high"] > 0, "none of three is not never"
    assert plain["malformed"]["value"] == plain["any fault"]["value"] == pytest.approx(100 / 3)
    assert result["figures"]["parallel - baseline"]["any fault"]["value"] == pytest.approx(100 / 3)
    assert result["figures"]["where parallel promises"]["any fault"]["value"] == pytest.approx(100 / 3)


def test_likelihoods_are_computed_once_for_each_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        Answer(0, "baseline", text="Tea is old.", question="Tell me of tea."),
        Answer(0, "parallel", text="Tea is old.", question="Tell me of tea."),
        Answer(1, "baseline", text="Coffee is older.", question="Tell me of coffee."),
        Answer(1, "parallel", text="", promises=1, question="Tell me of coffee."),
    ]
    result = judged(tmp_path, rows, f"--likelihood {PASTA_TINY}")
    first, journal = capsys.readouterr().out, tmp_path / "out" / "bits.jsonl"
    lines = journal.read_text().splitlines()
    assert len(lines) == 1 + 3, "two answers to one prompt are the same"
    journal.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9])
    judged(tmp_path, rows, f"--likelihood {PASTA_TINY}")
    assert capsys.readouterr().out == first
    bits = [json.loads(line)["figure"] for line in lines[1:]]
    tea, coffee = [value for value in bits if value is not None]
    assert 0 < tea < 30 and 0 < coffee < 30
    assert result["figures"]["baseline"]["bits a token"]["value"] == tea, "nobody's coffee has a pair"
    assert result["figures"]["parallel - baseline"]["bits a token"]["value"] == 0
    assert result["figures"]["where parallel promises"]["bits a token"] is None, "one answer without text"


def test_a_prompt_counts_once_whatever_the_number_of_passes(tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    for passes in (1, 2):
        rows = [
            Answer(
                prompt,
                form,
                number,
                text="Tea is old." + " Very." * (prompt % 3 if form == "parallel" else 0),
            )
            for prompt in range(12)
            for form in ("baseline", "parallel")
            for number in range(passes)
        ]
        results.append(judged(tmp_path, rows, f"--judge {__name__}:Longer", passes=passes))
    once, twice = (result["figures"]["parallel - baseline"]["judge, %"] for result in results)
    assert once == pytest.approx(twice), "twice as many answers that are alike are no more certain"


def test_prompts_count_that_every_form_has_an_answer_to(tmp_path: Path) -> None:
    rows = [Answer(number, form) for number in range(3) for form in ("baseline", "parallel")]
    assert judged(tmp_path, rows[:-1])["answers"]["of each form"] == 2
    for name, lines in {
        "baseline": [{}, *map(asdict, rows[1::2])],
        "other": [{"a": 1}, {"b": 2}],
        "empty": [{"a": 1}],
    }.items():
        write_rows(tmp_path / f"{name}.jsonl", lines)
        failed(main, f"--answers {tmp_path}/{name}.jsonl --out {tmp_path}/out")
    failed(main, f"--answers {tmp_path}/missing.jsonl --out {tmp_path}/out")


@pytest.mark.timeout(300)  # it takes many seconds of CPU to import
def test_alpaca_eval_reads_the_answers_and_finds_the_known_win_rate(tmp_path: Path) -> None:
    rows = [
        Answer(number, form, text=f"{form} answer {number}", question=f"What is {number}?")
        for number in range(8)
        for form in ("baseline", "parallel")
    ]
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, rows)])
    run(main, f"--answers {tmp_path}/answers.jsonl --out {tmp_path}")
    better = {f"parallel answer {number}" for number in range(6)} | {"baseline answer 6", "baseline answer 7"}
    files = {"model_outputs": "parallel", "reference_outputs": "baseline"}
    options = [f"--{option}={tmp_path}/alpaca/{form}.json" for option, form in files.items()]
    with judging(lambda first, second: 0.9 if first in better else 0.1) as (_, url):
        environment = {**os.environ, "OPENAI_API_BASE": url, "OPENAI_API_KEY": "none"}
        program = Path(sys.executable).with_name("alpaca_eval")
        # Length control gets its data from the Hugging Face hub.
        options += ["--fn_metric=get_winrate", "--sort_by=win_rate", f"--output_path={tmp_path}/alpaca"]
        subprocess.run([program, *options], env=environment, cwd=tmp_path, check=True, capture_output=True)
    [table] = (tmp_path / "alpaca").rglob("leaderboard.csv")
    header, values = (line.split(",") for line in table.read_text().splitlines())
    assert float(values[header.index("win_rate")]) == pytest.approx(100 * (6 * 0.9 + 2 * 0.1) / 8)
