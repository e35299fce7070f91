"""AlpacaEval's own package, in its own process, against a real judge server; prompts are made up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run
from judge_server import (
    failing,
    first_is_better,
    forbidding,
    judging,
    no_trouble,
    not_json,
    prefers,
    rate_limited,
    silent,
    talkative,
)

from pasta_async import InvalidRequestError
from pasta_async.errors import BackendError
from pasta_async.evals import answers as answering
from pasta_async.evals.alpaca import AlpacaSettings, JudgeFailedError, judge, main
from pasta_async.evals.answers import Answer
from pasta_async.evals.documents import Prompt, read_prompts
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from pathlib import Path

    from judge_server import Opinion, Trouble

pytestmark = pytest.mark.timeout(300)
"""AlpacaEval takes three seconds of CPU to import, again and again, on a machine that may be busy."""


def answers(count: int) -> tuple[list[Answer], list[Answer]]:
    """Parallel and plain answers of several lengths."""
    asked = [f"What is {n} and {n}?" for n in range(count)]
    parallel = [f"In short {2 * n}" + " of course" * (n % 5) for n in range(count)]
    plain = [f"Plainly {2 * n}" + " indeed" * (n % 3) for n in range(count)]
    return (
        [Answer(n, "parallel", text=parallel[n], question=asked[n]) for n in range(count)],
        [Answer(n, "baseline", text=plain[n], question=asked[n]) for n in range(count)],
    )


def asks(url: str, out: Path, **changed: Any) -> AlpacaSettings:
    fixed = {"answers": out / "answers.jsonl", "judge_model": "some-judge", "bootstrap": 3}
    return AlpacaSettings.model_validate({"judge": url, "out": out, **fixed, **changed})


def prefers_parallel(parallel: list[Answer]) -> Opinion:
    return prefers({one.text for one in parallel})


def test_a_judge_who_knows_the_better_answers_gives_the_known_win_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "very secret")
    parallel, plain = answers(20)
    parallel[0] = replace(parallel[0], text=plain[0].text)  # a draw, about which nobody is asked
    better = {one.text for one in (*parallel[1:14], *plain[14:])}
    with judging(prefers(better, 0.9)) as (known, url):
        found = judge(parallel, plain, asks(url, tmp_path, key_variable="MY_KEY"))
    expected = [0.5, *[0.9] * 13, *[0.1] * 6]
    assert found["preferences"] == pytest.approx(expected)
    rates, controlled = found["alpaca_eval"], found["length_controlled_win_rate"]
    assert rates["win_rate"] == pytest.approx(100 * sum(expected) / 20)
    assert (rates["n_wins"], rates["n_draws"]) == (13, 1)
    assert 50 <= rates["length_controlled_winrate"] == controlled["value"] < 90
    assert controlled["low"] < controlled["high"]
    assert controlled["draws"] == 3
    assert (found["missing"], known.asked.total()) == (0, 19)
    assert set(known.keys) == {"Bearer very secret"}
    assert not any(b"very secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_judge_who_likes_what_stands_first_gives_half(tmp_path: Path) -> None:
    with judging(first_is_better) as (_, url):
        found = judge(*answers(120), asks(url, tmp_path, in_flight=8))
    assert set(found["preferences"]) == {0, 1}
    assert abs(found["alpaca_eval"]["win_rate"] - 50) < 100 * 2.6 * math.sqrt(0.25 / 120)  # 99 of 100


def test_rate_limits_failures_and_nonsense_are_survived(tmp_path: Path) -> None:
    parallel, plain = answers(8)
    troubles: dict[int, Trouble] = {0: rate_limited, 1: failing, 3: not_json, 5: talkative, 7: rate_limited}
    with judging(prefers_parallel(parallel)) as (judge_, url):

        def first_time(_: int, text: str) -> Trouble | None:
            place = next(one.prompt for one in parallel if one.question in text)
            return troubles.get(place) if judge_.asked[text] == 1 else None

        judge_.trouble = first_time
        found = judge(parallel, plain, asks(url, tmp_path))
        assert judge_.asked.total() == 8 + len(troubles)
    assert found["preferences"] == [1.0] * 8
    assert (found["missing"], found["alpaca_eval"]["win_rate"]) == (0, 100)


def test_what_a_silent_judge_left_out_is_asked_for_again_and_nothing_else(tmp_path: Path) -> None:
    parallel, plain = answers(8)
    with judging(prefers_parallel(parallel)) as (judge_, url):
        settings = asks(url, tmp_path, timeout=1.5, retries=0)
        judge_.trouble = lambda number, text: silent if parallel[5].question in text else None
        with pytest.raises(JudgeFailedError, match="BackendTimeoutError"):
            judge(parallel, plain, settings)
        judge_.trouble = no_trouble
        judge_.asked.clear()
        with (tmp_path / "judgements.jsonl").open("a") as file:
            file.write('{"key": "cut by an interr')
        found = judge(parallel, plain, settings)
    assert found["preferences"] == [1.0] * 8
    assert judge_.asked.total() == 1
    assert any(parallel[5].question in text for text in judge_.asked)


def test_some_pairs_may_stay_without_a_judgement(tmp_path: Path) -> None:
    parallel, plain = answers(8)
    with judging(prefers_parallel(parallel)) as (judge_, url):
        judge_.trouble = lambda number, text: talkative if parallel[5].question in text else None
        found = judge(parallel, plain, asks(url, tmp_path, allow_missing=1))
    assert found["missing"] == 1
    assert found["preferences"] == [*[1.0] * 5, None, 1.0, 1.0]
    assert found["alpaca_eval"]["n_total"] == 7


@pytest.mark.parametrize("trouble", [failing, forbidding, talkative])
def test_a_judge_who_is_of_no_use_is_left_in_peace(tmp_path: Path, trouble: Any) -> None:
    with judging(first_is_better) as (judge_, url):
        judge_.trouble = lambda number, text: trouble
        with pytest.raises(BackendError):
            judge(*answers(60), asks(url, tmp_path, retries=0, in_flight=2))
        assert judge_.asked.total() < 6


def written(path: Path, questions: list[Prompt]) -> Path:
    rows = ({"instruction": q.text, "dataset": q.family} for q in questions)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_command_judges_answers_that_another_one_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [
        "Describe Mireko and Sotani. Mireko is a tall baker. Sotani is a young sailor.",
        "Add up the fruits. Mireko has 2 apples, 3 plums and 2 figs. Sotani has 4 pears and 5 melons.",
        "A box starts with 6 shells. Then Rimako adds 5. Then Tolena takes 3. Follow the steps.",
    ]
    questions = [Prompt(prompt, "made up") for prompt in prompts]
    out = tmp_path / "out"
    file = written(tmp_path / "p.jsonl", questions)
    answered = tmp_path / "answers.jsonl"
    run(answering.main, "--max-tokens 60 --prompts", file, "--out", answered)
    rows = [json.loads(line) for line in answered.read_text().splitlines()[1:]]
    texts = {(row["prompt"], row["method"]): row["text"] for row in rows}
    assert len(texts) == 6

    with judging(prefers({texts[n, "parallel"] for n in range(3)})) as (judge_, url):
        run(main, "--judge-model kind --judge", url, answered, "--out", out)
    draws = sum(texts[n, "parallel"] == texts[n, "baseline"] for n in range(3))
    result = json.loads((out / "result.json").read_text())
    assert result["win_rate"]["value"] == pytest.approx(100 - 50 * draws / 3)
    assert judge_.asked.total() == 3 - draws
    assert (result["same_text"], result["missing"]) == (draws, 0)
    assert result["prompts"] == 3
    assert result["length_control"] == "length_controlled_minimal"
    assert "five prompts" in result["length_controlled_win_rate"]["reason"]
    assert result["versions"]["alpaca_eval"].startswith("0.6.")
    assert [row["dataset"] for row in result["by_dataset"]] == ["made up"]
    assert "| made up | 3 |" in capsys.readouterr().out
    assert "max_tokens: 60 there, 61 now" in refused(
        answering.main, "--max-tokens 61 --prompts", file, "--out", answered
    )


def test_a_prompt_that_the_model_cannot_hold_has_empty_answers_and_ends_nothing(tmp_path: Path) -> None:
    questions = [Prompt("Again and again. " * 2000, "long"), Prompt("Follow the steps.", "short")]
    prompts, out = written(tmp_path / "p.jsonl", questions), tmp_path / "answers.jsonl"
    run(answering.main, f"--backend {LOCAL_TINY} --max-tokens 5 --prompts", prompts, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert {(row["prompt"], row["method"], bool(row["tokens"])) for row in rows} == {
        (prompt, form, prompt == 1) for prompt in (0, 1) for form in ("baseline", "parallel")
    }
    assert {row["finish_reason"] for row in rows} == {"length"}


@pytest.mark.parametrize("text", ["", '{"dataset": "a"}', "One?"])
def test_prompts_that_cannot_be_used_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(InvalidRequestError, match=r"p\.jsonl"):
        read_prompts(tmp_path / "p.jsonl")


def test_prompts_may_be_a_json_list(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('[{"instruction": "One?", "dataset": "koala", "output": "1"}]')
    assert read_prompts(tmp_path / "p.json") == [Prompt("One?", "koala")]
