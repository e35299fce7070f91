"""Answers in several forms, judged and compared prompt by prompt."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async import Client
from pasta_async.errors import BackendStatusError
from pasta_async.evals.answers import Answer, ask, read_answers
from pasta_async.evals.quality import SPEED, main
from pasta_async.evals.report import write_rows
from pasta_async.testing import ScriptedBackend
from pasta_async.training.judging import Judge
from tests.pasta_tiny import LOCAL_TINY, PASTA_TINY

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.training.samples import SampledPrompt

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


async def test_in_parallel_an_untrained_model_writes_an_outline() -> None:
    text = "Two:\n\n1. **Tea**: Old.\n\n2. **Coffee**: Newer."
    async with Client(ScriptedBackend(text, trained=False)) as client:
        rows = [await ask(client, Answer(0, form, question="x")) for form in ("baseline", "parallel")]
    assert [(row.text, row.promises) for row in rows] == [(text, 0), (text, 2)]


def test_each_form_is_compared_with_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"baseline": "Tea is old.", "parallel": "Tea is very old.", "original": "Tea."}
    rows = [
        Answer(number, form, text=text, question=f"Prompt {number}")
        for number in range(12)
        for form, text in texts.items()
    ]
    result = judged(tmp_path, rows, f"--judge {__name__}:Longer")
    assert {form: figures["judge, %"]["value"] for form, figures in result["methods"].items()} == {
        "parallel": 100,
        "baseline": 50,
        "original": 0,
    }
    assert [*result["differences"]] == [
        "parallel - baseline",
        "parallel - original",
        "baseline - original",
    ]
    assert result["differences"]["parallel - baseline"]["judge, %"]["bound"] == 50
    assert "| judge, % | 100 (75.8 to 100) | 50 (50 to 50) |" in capsys.readouterr().out
    for form, text in texts.items():
        exported = json.loads((tmp_path / "out" / "alpaca" / f"{form}.json").read_text())
        assert exported[7] == {"instruction": "Prompt 7", "output": text, "generator": form}


def test_an_answer_that_the_judge_refuses_is_counted_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"baseline": "Tea is old.", "parallel": "Tea is very old."}
    rows = [Answer(number, form, text=text) for number in range(12) for form, text in texts.items()]
    rows[1] = Answer(0, "parallel", text="Coffee is much older.")
    result = judged(tmp_path, rows, f"--judge {__name__}:Longer")
    assert "BackendStatusError: it is too long" in capsys.readouterr().err
    assert [result["missing"][form]["judge, %"] for form in ("baseline", "parallel")] == [0, 1]
    assert result["differences"]["parallel - baseline"]["judge, %"]["value"] == 50
    write_rows(
        tmp_path / "b.jsonl", [{"made": "up"}, *(asdict(Answer(0, form, text="Coffee!")) for form in texts)]
    )
    command = f"--answers {tmp_path}/b.jsonl --judge {__name__}:Longer --out {tmp_path}/b"
    assert refused(main, command).startswith("BackendError")


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
    tagged, plain = result["methods"]["parallel"], result["methods"]["baseline"]
    for name in ("repeat", "cut", "off_topic"):
        assert tagged[name]["value"] == pytest.approx(100 / 3)
    assert tagged["any fault"]["value"] == pytest.approx(200 / 3)
    assert tagged["empty"]["high"] > 0, "none of three is not never"
    assert plain["malformed"]["value"] == plain["any fault"]["value"] == pytest.approx(100 / 3)
    assert result["differences"]["parallel - baseline"]["any fault"]["value"] == pytest.approx(100 / 3)
    assert result["differences"]["where promised"]["any fault"]["value"] == pytest.approx(100 / 3)


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
    assert result["methods"]["baseline"]["bits a token"]["value"] == pytest.approx((tea + coffee) / 2)
    assert result["differences"]["parallel - baseline"]["bits a token"]["value"] == 0
    assert result["differences"]["where promised"]["bits a token"] is None, "one answer without text"


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
    once, twice = (result["differences"]["parallel - baseline"]["judge, %"] for result in results)
    assert once == pytest.approx(twice), "twice as many answers that are alike are no more certain"


def test_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    rows = [asdict(Answer(number, form)) for number in range(3) for form in ("baseline", "parallel")]
    out = f"--out {tmp_path}/out"
    for name, lines in {
        "prompt": [{}, *rows[:-1]],
        "pass": [{"passes": 2}, *rows],
        "count": [{"count": 4}, *rows],
        "form": [{"forms": ["baseline", "parallel", "original"]}, *rows],
        "baseline": [{}, *rows[1::2]],
        "other": [{"a": 1}, {"b": 2}],
        "empty": [{"a": 1}],
    }.items():
        write_rows(tmp_path / f"{name}.jsonl", lines)
        refused(main, f"--answers {tmp_path}/{name}.jsonl {out}")
    refused(main, f"--answers {tmp_path}/missing.jsonl {out}")


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for arguments in (
        "--backend local:",
        "--answers a.jsonl --backend local: --prompts p.txt",
    ):
        with pytest.raises(SystemExit) as ended:
            main([*arguments.split(), "--out", str(tmp_path)])
        assert ended.value.code == 2


# Writing answers -----------------------------------------------------------------------------------------


def test_sampled_answers_are_drawn_alike_in_every_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "p.txt").write_text("Tell me of tea.\nTell me of coffee.\nTell me of milk.\n")
    ask = f"--backend {LOCAL_TINY} --prompts {tmp_path}/p.txt --temperature 1 --max-tokens 12"
    drawn: dict[str, list[Any]] = {}
    for name, more in {
        "a": "",
        "b": "--together 1",
        "c": "--seed 2",
        "d": f"--sample 2 --passes 2 --original {LOCAL_TINY}",
    }.items():
        run(main, f"{ask} --out {tmp_path}/{name} {more}")
        _, answers = read_answers(tmp_path / name / "answers.jsonl")
        drawn[name] = [(row.method, row.question, row.number, row.text) for row in answers]
    assert drawn["a"] == drawn["b"] != drawn["c"]
    assert len(drawn["d"]) == 2 * 2 * 3
    first = {row for row in drawn["d"] if not row[2] and row[0] != "original"}
    assert first < {*drawn["a"]}
    result = json.loads((tmp_path / "d" / "result.json").read_text())
    assert result["differences"]["baseline - original"]["tokens of the text"]["value"] == 0, "the same model"
    assert f"{SPEED} to original" in result
    assert "max_tokens: 12 there, 13 now" in refused(main, f"{ask} --out {tmp_path}/a --max-tokens 13")
