"""The command that asks a judge about answers, and writing them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async.errors import BackendStatusError
from pasta_async.evals import answers as answering
from pasta_async.evals.answers import Answer, read_answers
from pasta_async.evals.judge import main
from pasta_async.evals.records import write_rows
from pasta_async.training.judging import Judge
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.training.samples import SampledPrompt


class Longer(Judge):
    """Finds the longer answer better."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        other = prompt.baseline.text
        return 0.5 + 0.5 * ((len(text) > len(other)) - (len(text) < len(other)))


class Picky(Longer):
    """Refuses what is said of coffee."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        if "Coffee" in text:
            raise BackendStatusError("it is too long", status=400)
        return await super().quality(prompt, text)


def test_each_form_is_compared_with_the_plain_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"baseline": "Tea is old.", "parallel": "Tea is very old.", "original": "Tea."}
    rows = [Answer(place, form, text=text) for place in range(12) for form, text in texts.items()]
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, rows)])
    run(main, f"{tmp_path}/answers.jsonl --judge {__name__}:Longer --out {tmp_path}/out")
    assert "| parallel | 12 | 100.0" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    found = {form: own["quality %"]["value"] for form, own in result["methods"].items()}
    assert found == {"baseline": 50, "parallel": 100, "original": 0}
    assert result["differences"]["parallel - baseline"]["quality %"]["bound"] == 50
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, asdict(rows[1])])
    refused(main, f"{tmp_path}/answers.jsonl --judge {__name__}:Longer --out {tmp_path}/out")


def test_an_answer_that_the_judge_refuses_is_counted_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"baseline": "Tea is old.", "parallel": "Tea is very old."}
    rows = [Answer(place, form, text=text) for place in range(12) for form, text in texts.items()]
    rows[1] = Answer(0, "parallel", text="Coffee is much older.")
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, rows)])
    run(main, f"{tmp_path}/answers.jsonl --judge {__name__}:Picky --out {tmp_path}/out")
    assert "BackendStatusError: it is too long" in capsys.readouterr().err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["unjudged"] == {"baseline": 0, "parallel": 1}
    assert result["differences"]["parallel - baseline"]["quality %"]["value"] == 50
    rows = [Answer(0, form, text="Coffee!") for form in texts]
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, rows)])
    refusal = refused(main, f"{tmp_path}/answers.jsonl --judge {__name__}:Picky --out {tmp_path}/out")
    assert refusal.startswith("BackendError")


def test_sampled_answers_are_drawn_alike_in_every_run(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Tell me of tea.\nTell me of coffee.\nTell me of milk.\n")
    ask = f"--backend {LOCAL_TINY} --prompts {tmp_path}/p.txt --temperature 1 --max-tokens 12"
    found = {
        name: run(answering.main, f"{ask} --out {tmp_path}/{name}.jsonl {more}")
        or [(one.method, one.question, one.text) for one in read_answers(tmp_path / f"{name}.jsonl")[1]]
        for name, more in {"a": "", "b": "--together 1", "c": "--seed 2", "d": "--sample 2"}.items()
    }
    assert found["a"] == found["b"] != found["c"]
    assert len(found["d"]) == 4
    assert {*found["d"]} < {*found["a"]}


def test_passes_are_other_draws_and_a_prompt_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text("".join(f"Tell me of {name}.\n" for name in "abcdefghijkl"))
    ask = f"--backend {LOCAL_TINY} --prompts {tmp_path}/p.txt --max-tokens 12 --passes 2"
    refused(answering.main, f"{ask} --out {tmp_path}/greedy.jsonl")
    run(answering.main, f"{ask} --temperature 1 --out {tmp_path}/a.jsonl")
    identity, found = read_answers(tmp_path / "a.jsonl")
    texts = {one.number: [own.text for own in found if own.number == one.number] for one in found}
    assert identity["passes"] == 2
    assert len(texts[0]) == len(texts[1]) == 24
    assert texts[0] != texts[1]
    # Both draws of a prompt are alike: twice as many answers are no more certain.
    judged: list[dict[str, Any]] = []
    for passes in (1, 2):
        rows = [
            Answer(place, form, number, text="Tea is old." + " Very." * (place % 3) * (form == "parallel"))
            for place in range(12)
            for form in ("baseline", "parallel")
            for number in range(passes)
        ]
        write_rows(tmp_path / "b.jsonl", [{"made": "up"}, *map(asdict, rows)])
        run(main, f"{tmp_path}/b.jsonl --judge {__name__}:Longer --out {tmp_path}/out{passes}")
        judged.append(json.loads((tmp_path / f"out{passes}" / "result.json").read_text()))
    once, twice = (one["differences"]["parallel - baseline"]["quality %"] for one in judged)
    assert once == pytest.approx(twice)
    assert "| parallel | 24 | " in capsys.readouterr().out
    write_rows(tmp_path / "b.jsonl", [{"passes": 3}, *map(asdict, rows)])
    refused(main, f"{tmp_path}/b.jsonl --judge {__name__}:Longer --out {tmp_path}/out3")
