"""Scores for stage 2: known judges give known qualities, bad ones are survived, and nothing is paid twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pasta_async.errors import BackendError, BackendProtocolError, BackendStatusError
from pasta_async.training.data.corpus import write_records
from pasta_async.training.samples import SampledPrompt, read_scores
from pasta_async.training.score import ScoreSettings, main, score
from tests.helpers.chat_server import (
    Trouble,
    failing,
    forbidding,
    judging,
    not_json,
    silent,
    talkative,
    without_choices,
)
from tests.helpers.commands_run import failed
from tests.helpers.samples import sample, sampled_prompt


def prompt_of(name: str, *texts: str, **changed: Any) -> SampledPrompt:
    samples = (sample(number, text, **changed) for number, text in enumerate(texts))
    return sampled_prompt(name, f"What is {name}?", samples, baseline=f"plain {name}", tokens=30)


PROMPTS = (
    prompt_of("a", "good a", "bad a", "good a"),
    prompt_of("b", "plain b", "bad b", "good b"),
    prompt_of("c", "good c", "good c"),
)


def settings(folder: Path, judge: str, prompts: tuple[SampledPrompt, ...] = PROMPTS, **more: Any) -> Any:
    write_records(folder / "samples.jsonl", prompts)
    usual = {"samples": folder / "samples.jsonl", "out": folder / "scores.jsonl", "judge": judge}
    return ScoreSettings.model_validate({**usual, "judge_model": "some-judge", "retries": 1, **more})


def scored(folder: Path, judge: str, **more: Any) -> tuple[dict[str, Any], dict[tuple[str, int], float]]:
    summary = asyncio.run(score(settings(folder, judge, **more)))
    return summary, {key: judged.quality for key, judged in read_scores(folder / "scores.jsonl").items()}


# A model that compares -----------------------------------------------------------------------------------


def test_a_judge_who_knows_the_better_answers_gives_known_qualities(tmp_path: Path) -> None:
    with judging(_known) as (judge, url):
        summary, qualities = scored(tmp_path, url)
    expected = {("a", 0): 0.9, ("a", 1): 0.1, ("a", 2): 0.9, ("b", 0): 0.5, ("b", 1): 0.1, ("b", 2): 0.9}
    assert qualities == pytest.approx({**expected, ("c", 0): 0.9, ("c", 1): 0.9})
    assert summary["mean_quality"] == pytest.approx(5 * 0.9 / 8 + 0.2 / 8 + 0.5 / 8)
    assert (
        judge.asked.total() == len(judge.asked) == summary["requests"] == 2 * 5
    )  # both orders, no answer twice
    assert all("What is" in question for question in judge.asked)


def test_only_sound_answers_are_judged_where_only_they_may_win(tmp_path: Path) -> None:
    first, other = prompt_of("a", "good a", "bad a"), prompt_of("b", "good b", well_formed=False)
    same = first.samples[0].model_copy(update={"number": 2, "well_formed": False})
    first = first.model_copy(update={"samples": (*first.samples, same)})
    with judging(_known) as (judge, url):
        summary, qualities = scored(tmp_path, url, prompts=(first, other), sound_only=True)
    assert qualities == pytest.approx({("a", 0): 0.9, ("a", 1): 0.1, ("a", 2): 0.0, ("b", 0): 0.0})
    assert judge.asked.total() == summary["requests"] == 2 * 2


def _known(first: str, second: str) -> float:
    """Good beats plain beats bad."""
    ranks = ["good", "plain", "bad"]
    return 0.9 if ranks.index(first.split()[0]) < ranks.index(second.split()[0]) else 0.1


def test_a_judge_who_goes_by_position_decides_nothing(tmp_path: Path) -> None:
    with judging(lambda _first, _second: 1.0) as (_, url):
        _, qualities = scored(tmp_path, url)
    assert {*qualities.values()} == {0.5}


@pytest.mark.parametrize("trouble", [failing, not_json, talkative, silent, without_choices])
def test_an_answer_that_cannot_be_judged_harms_no_other(trouble: Trouble, tmp_path: Path) -> None:
    with judging(_known) as (judge, url):
        judge.trouble = lambda _, prompt: trouble if "bad b" in prompt else None
        summary, qualities = scored(tmp_path, url, together=1, retries=0, timeout=1)
        assert {*qualities} == {(p.id, s.number) for p in PROMPTS for s in p.samples} - {("b", 1)}
        assert sum(summary["failures"].values()) == 1
        assert summary["scored"] == 7
        before = judge.asked.total()
        judge.trouble = lambda _number, _text: None
        again, qualities = scored(tmp_path, url)
    assert len(qualities) == 8
    assert again["resumed"] == 8
    assert again["requests"] == judge.asked.total() - before == 2


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (forbidding, BackendStatusError),
        (talkative, BackendProtocolError),
        (not_json, BackendProtocolError),
    ],
)
def test_a_judge_of_no_use_ends_the_run(trouble: Trouble, error: type[BackendError], tmp_path: Path) -> None:
    with judging(_known) as (judge, url):
        judge.trouble = lambda _number, _text: trouble
        with pytest.raises(error):
            scored(tmp_path, url, together=2)
        assert judge.asked.total() < 9
    assert not (tmp_path / "scores.jsonl").exists()


# Another judge ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judge", "message"),
    [("nobody", "nobody is no endpoint"), ("http://127.0.0.1:1/v1", "name the endpoint's model")],
)
def test_a_judge_must_be_named(judge: str, message: str, tmp_path: Path) -> None:
    assert message in failed(main, "--samples", tmp_path / "s", "--out", tmp_path / "o", "--judge", judge)
