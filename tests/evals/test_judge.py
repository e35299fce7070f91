"""A judge that is trained on preferences: what it learns, and what it says of itself."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta_async import InvalidRequestError
from pasta_async.evals.judge import Preference, TrainedJudge, TrainSettings, fit_weights, train
from pasta_async.training import score
from pasta_async.training.jobs import Journal
from pasta_async.training.samples import read_scores
from tests.helpers.commands_run import run, write_rows
from tests.helpers.samples import sample, sampled_prompt
from tests.pasta_tiny import PASTA_TINY

GOOD, BAD = ("calm", "warm", "bright", "gentle", "fine"), ("wet", "broken", "rusty", "sour", "dull")
THINGS = ("river", "house", "garden", "bridge", "market", "tower", "school", "road", "lake", "farm")


def answer(good: bool, words: int, draw: random.Random) -> str:
    """An answer whose quality shows in its adjectives."""
    return " ".join(f"It is {adjective}." for adjective in draw.choices(GOOD if good else BAD, k=words))


def rows(prompts: int = 20) -> list[dict[str, Any]]:
    """Preferences of good answers over bad ones; length says nothing."""
    draw = random.Random(0)
    preferences: list[dict[str, Any]] = []
    for number in range(3 * prompts):
        first_is_good, words = draw.random() < 0.5, draw.randint(2, 14)
        preferences.append(
            {
                "instruction": f"Describe the {THINGS[number % prompts % 10]} number {number % prompts}.",
                "output_1": answer(first_is_good, words, draw),
                "output_2": answer(not first_is_good, words + draw.randint(-1, 1), draw),
                "preference": 1.1 if first_is_good else 1.9,
            }
        )
    return preferences


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    file = write_rows(folder / "preferences.jsonl", rows())
    train(TrainSettings(model=PASTA_TINY, preferences=(file,), out=folder / "judge", penalty=1.0))
    return folder


async def qualities(journal: Path, judge: Path, texts: Sequence[str], baseline: str) -> list[float]:
    prompt = sampled_prompt("1", "Describe the station.", (), baseline=baseline)
    with Journal(journal, {}) as opened:
        judge_of = TrainedJudge(judge, opened)
        return [await judge_of.quality(prompt, text) for text in texts]


def test_it_agrees_with_preferences_on_prompts_that_it_did_not_learn_from(trained: Path) -> None:
    unseen = json.loads((trained / "judge" / "report.json").read_text())["unseen prompts"]
    assert (unseen["pairs"], unseen["prompts"]) == (60, 20)
    assert unseen["judge"]["low"] > 80
    assert unseen["longer"]["value"] < 75


async def test_it_judges_answers_of_any_length_by_their_quality(trained: Path, tmp_path: Path) -> None:
    draw = random.Random(9)
    good, bad = ([answer(kind, words, draw) for words in (6, 3, 12)] for kind in (True, False))
    journal = tmp_path / "rewards.jsonl"
    same, blank, *worse = await qualities(journal, trained / "judge", [good[0], " ", *bad], good[0])
    assert (same, blank) == (0.5, 0.0)
    assert max(worse) < 0.3
    assert min(await qualities(journal, trained / "judge", good, bad[0])) > 0.7
    stored = journal.read_bytes()
    assert await qualities(journal, trained / "judge", bad, good[0]) == worse
    assert journal.read_bytes() == stored, "nothing is computed again"


def test_samples_are_scored_for_stage_2(trained: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    samples = [sample(number, answer(not number, 6, draw), critical_path=5) for number in (0, 1)]
    prompt = sampled_prompt("1", "Describe the station.", samples, baseline=answer(True, 5, draw))
    file = write_rows(tmp_path / "samples.jsonl", [prompt.model_dump(mode="json")])
    command = f"--judge pasta_async.evals.judge:TrainedJudge --judge-model {trained}/judge"
    run(score.main, f"{command} --samples {file} --out {tmp_path}/scores.jsonl")
    scores = read_scores(tmp_path / "scores.jsonl")
    assert scores["1", 0].quality > scores["1", 1].quality
    assert scores["1", 0].speedup == 2


def test_what_length_explains_is_not_put_down_to_quality() -> None:
    draw = np.random.default_rng(0)
    quality, lengths = draw.normal(size=(2000, 1)), draw.normal(size=2000)
    first_wins = draw.random(2000) < 1 / (1 + np.exp(-(quality[:, 0] + 2 * lengths)))
    sign = np.where(first_wins, 1, -1)
    features = sign[:, None] * (quality + lengths[:, None])  # length shows in what the judge sees
    assert fit_weights(features, sign * lengths, penalty=1e-6) == pytest.approx([1], abs=0.25)


def test_ties_and_empty_answers_are_left_out() -> None:
    row = {"instruction": "p", "output_1": "a", "output_2": "bb"}
    pairs = [Preference.model_validate({**row, "preference": value}) for value in (1, 1.9, 1.5, 0, None)]
    assert [pair.decided for pair in pairs] == [True, True, False, False, False]
    assert [pair.answers for pair in pairs[:2]] == [("a", "bb"), ("bb", "a")]
    assert pairs[0].length < 0 < pairs[1].length
    for changed in ({"output_2": " "}, {"output_2": "a"}):
        assert not Preference.model_validate({**row, "preference": 1, **changed}).decided


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"instruction": "p", "output_1": "a", "preference": 1}], ":1: output_2"),
        ([*rows(1)[:2], {**rows(1)[0], "preference": 3}], ":3: preference"),
        (rows(3), "3 prompts"),
    ],
)
def test_preferences_of_no_use_are_refused(lines: list[Any], message: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "preferences.jsonl", lines)
    with pytest.raises(InvalidRequestError, match=message):
        train(TrainSettings(model=PASTA_TINY, preferences=(file,), out=tmp_path / "judge"))


async def test_a_folder_that_is_no_judge_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no trained judge"):
        await qualities(tmp_path / "r.jsonl", tmp_path, ["a"], "b")
    stored = json.loads((trained / "judge" / "judge.json").read_text())
    shutil.copy(trained / "judge" / "judge.safetensors", tmp_path)
    (tmp_path / "judge.json").write_text(json.dumps({**stored, "model": "another"}))
    with pytest.raises(InvalidRequestError, match="another"):
        await qualities(tmp_path / "r.jsonl", tmp_path, ["a"], "b")
