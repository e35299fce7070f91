"""AlpacaEval's own package, in its own process, against a real judge server; prompts are made up."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
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
    talkative,
)

from pasta_async.errors import BackendError
from pasta_async.evals import quality
from pasta_async.evals.alpaca import JudgeFailedError, compare_forms
from pasta_async.evals.answers import Answer
from pasta_async.evals.report import write_rows
from pasta_async.training.endpoint import EndpointSettings

if TYPE_CHECKING:
    from pathlib import Path

    from judge_server import Trouble

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


def judge(
    parallel: list[Answer], plain: list[Answer], url: str, out: Path, allow_missing: int = 0, **options: Any
) -> dict[str, Any]:
    return compare_forms(
        {"baseline": plain, "parallel": parallel},
        out,
        judge=url,
        judge_model="some-judge",
        settings=EndpointSettings(**options),
        allow_missing=allow_missing,
    )


def texts(rows: list[Answer]) -> set[str]:
    return {row.text for row in rows}


def test_a_judge_who_knows_the_better_answers_gives_the_known_win_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "very secret")
    parallel, plain = answers(20)
    parallel[0] = replace(parallel[0], text=plain[0].text)  # a draw, about which nobody is asked
    with judging(prefers(texts([*parallel[1:14], *plain[14:]]), 0.9)) as (known, url):
        found = judge(parallel, plain, url, tmp_path, key_variable="MY_KEY")
    expected = [0.5, *[0.9] * 13, *[0.1] * 6]
    assert found["preferences"] == pytest.approx(expected)
    assert found["win rate"]["value"] == pytest.approx(100 * sum(expected) / 20)
    controlled = found["length-controlled win rate"]
    assert 50 <= controlled["value"] < 90
    assert controlled["low"] < controlled["high"]
    assert (found["missing"], known.asked.total()) == (0, 19)
    assert set(known.keys) == {"Bearer very secret"}
    assert not any(b"very secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_rate_limits_failures_and_nonsense_are_survived(tmp_path: Path) -> None:
    parallel, plain = answers(8)
    troubles = {0: rate_limited, 1: failing, 3: not_json, 5: talkative}
    with judging(prefers(texts(parallel))) as (known, url):

        def first_time(_: int, text: str) -> Trouble | None:
            place = next(row.prompt for row in parallel if row.question in text)
            return troubles.get(place) if known.asked[text] == 1 else None

        known.trouble = first_time
        found = judge(parallel, plain, url, tmp_path)
        assert known.asked.total() == 8 + len(troubles)
    assert found["preferences"] == [1.0] * 8
    assert (found["missing"], found["win rate"]["value"]) == (0, 100)


def test_a_missing_verdict_is_counted_and_asked_for_again_and_nothing_else(tmp_path: Path) -> None:
    parallel, plain = answers(8)
    with judging(prefers(texts(parallel))) as (known, url):
        known.trouble = lambda number, text: talkative if parallel[5].question in text else None
        with pytest.raises(JudgeFailedError, match="1 of 8 pairs"):
            judge(parallel, plain, url, tmp_path)
        found = judge(parallel, plain, url, tmp_path, allow_missing=1)
        assert found["missing"] == 1
        assert found["preferences"] == [*[1.0] * 5, None, 1.0, 1.0]
        known.trouble = no_trouble
        known.asked.clear()
        with (tmp_path / "judgements.jsonl").open("a") as file:
            file.write('{"key": "cut by an interr')
        assert judge(parallel, plain, url, tmp_path)["preferences"] == [1.0] * 8
    assert known.asked.total() == 1
    assert any(parallel[5].question in text for text in known.asked)


@pytest.mark.parametrize("trouble", [failing, forbidding, talkative])
def test_a_judge_who_is_of_no_use_is_left_in_peace(tmp_path: Path, trouble: Trouble) -> None:
    with judging(first_is_better) as (known, url):
        known.trouble = lambda number, text: trouble
        with pytest.raises(BackendError):
            judge(*answers(60), url, tmp_path, retries=0, in_flight=2)
        assert known.asked.total() < 6


@pytest.mark.parametrize("spaced", [5, 8])
def test_a_name_with_a_space_in_front_is_the_same_verdict(tmp_path: Path, spaced: int) -> None:
    parallel, plain = answers(8)
    with judging(prefers(texts(parallel))) as (known, url):
        known.prefix = lambda number: " " if number < spaced else ""
        found = judge(parallel, plain, url, tmp_path, in_flight=1)
    assert (found["preferences"], found["missing"]) == ([1.0] * 8, 0)


def test_the_command_judges_answers_that_another_one_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parallel, plain = answers(6)
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, (*parallel, *plain))])
    with judging(prefers(texts(parallel))) as (known, url):
        told = f"--answers {tmp_path}/answers.jsonl --alpaca --judge {url} --judge-model kind"
        run(quality.main, f"{told} --out {tmp_path}/out")
        assert known.asked.total() == 6
    result = json.loads((tmp_path / "out" / "result.json").read_text())["alpaca"]
    assert result["win rate"]["value"] == 100
    assert result["version"].startswith("0.6.")
    assert "| kind | 6 | 0 | 100 |" in capsys.readouterr().out
    twice = [replace(answer, question="What?") for answer in (*parallel, *plain)]
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, twice)])
    assert "'What?'" in refused(quality.main, f"{told} --out {tmp_path}/twice")
