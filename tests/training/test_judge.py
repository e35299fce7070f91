"""A trained judge: what it learns from preferences, what it says of itself; length is not quality."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_runs import run

from pasta_async import InvalidRequestError
from pasta_async.errors import UnsupportedModelError
from pasta_async.training.judge.__main__ import RewardSettings, main, train
from pasta_async.training.judge.head import fit_head, length_effects, length_terms
from pasta_async.training.judge.preferences import Comparison, Folds, draw, read_comparisons
from pasta_async.training.samples import Plain, SampledPrompt
from pasta_async.training.score import JudgeSettings, open_judge
from tests.pasta_tiny import PASTA_TINY

TINY = PASTA_TINY

GOOD, BAD = ("calm", "warm", "bright", "gentle", "fine"), ("wet", "broken", "rusty", "sour", "dull")
THINGS = ("river", "house", "garden", "bridge", "market", "tower", "school", "road", "lake", "farm")


def answer(good: bool, words: int, draw: random.Random) -> str:
    """An answer whose quality shows in its adjectives."""
    adjectives = draw.choices(GOOD if good else BAD, k=words)
    return " ".join(f"It is {adjective}." for adjective in adjectives)


def rows(prompts: int = 20, models: int = 6, seed: int = 0) -> list[dict[str, Any]]:
    """Preferences of good answers over bad ones; length says nothing, and every model writes both."""
    chance = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(prompts):
        reference = chance.random() < 0.5
        prompt = f"Describe the {THINGS[number % 10]} number {number}."
        words = chance.randint(2, 14)
        first = answer(reference, words, chance)
        for model in chance.sample(range(models), 3):
            second = answer(not reference, words, chance)
            made.append(
                {
                    "instruction": prompt,
                    "output_1": first,
                    "output_2": second,
                    "generator_1": "reference",
                    "generator_2": f"model {model}",
                    "preference": 1.0 if reference else 2.0,
                }
            )
    return made


def write(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def settings(folder: Path, lines: Iterable[Any] | None = None, **more: Any) -> RewardSettings:
    file = write(folder / "preferences.jsonl", rows() if lines is None else lines)
    given = {"model": TINY, "preferences": (file,), "out": folder / "judge", "within": 0.3}
    given |= {"model_folds": 2, "penalty": 1.0}
    return RewardSettings.model_validate({**given, **more})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained judge, and the preferences beside it."""
    folder = tmp_path_factory.mktemp("trained")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # waits for no other process
    train(settings(folder))
    torch.set_num_threads(before)
    return folder


def qualities(folder: Path, judge: Path, texts: Sequence[str], baseline: str) -> list[float]:
    """What `--judge reward` says of some answers to a prompt that the judge does not know."""
    asked = SampledPrompt(
        id="1",
        messages=({"role": "user", "content": "Describe the station."},),
        samples=(),
        baseline=Plain(text=baseline, tokens=9),
    )

    async def ask() -> list[float]:
        async with AsyncExitStack() as stack:
            named = JudgeSettings(judge="reward", judge_model=str(judge))
            opened = await open_judge(named, folder / "verdicts.jsonl", stack)
            return [*await asyncio.gather(*(opened.quality(asked, text) for text in texts))]

    return asyncio.run(ask())


# What it learns ------------------------------------------------------------------------------------------


def test_a_judge_agrees_with_preferences_that_length_does_not_explain(trained: Path) -> None:
    report = json.loads((trained / "judge" / "report.json").read_text())
    unseen = report["agreement"]["unseen prompts and models"]
    assert unseen["pairs"] == 60
    assert unseen["judge"]["low"] > 80
    assert unseen["longer"]["value"] < 75
    assert unseen["difference"]["low"] > 0
    assert report["log_loss"] < 0.4


def test_it_judges_answers_of_any_length_by_their_quality(trained: Path, tmp_path: Path) -> None:
    chance = random.Random(9)
    good, bad = ([answer(kind, words, chance) for words in (6, 3, 12)] for kind in (True, False))
    plain = good[0]
    same, blank, *worse = qualities(tmp_path, trained / "judge", [plain, " ", *bad], plain)
    assert (same, blank) == (0.5, 0.0)
    assert max(worse) < 0.3
    assert min(qualities(tmp_path, trained / "judge", good, bad[0])) > 0.7
    stored = (tmp_path / "verdicts.jsonl").read_bytes()
    assert qualities(tmp_path, trained / "judge", bad, plain) == worse
    assert (tmp_path / "verdicts.jsonl").read_bytes() == stored


def test_an_interrupted_run_goes_on_and_comes_to_the_same(trained: Path, tmp_path: Path) -> None:
    features = (trained / "judge" / "features.jsonl").read_text().splitlines(keepends=True)
    asked = settings(tmp_path)
    asked.out.mkdir()
    (asked.out / "features.jsonl").write_text("".join(features[:40]) + features[40][:50])
    train(asked)
    assert (asked.out / "features.jsonl").read_text().splitlines(keepends=True) == features
    reports = [json.loads((out / "report.json").read_text()) for out in (asked.out, trained / "judge")]
    assert reports[0]["agreement"] == reports[1]["agreement"]
    with pytest.raises(InvalidRequestError, match="answer_tokens"):
        train(settings(tmp_path, answer_tokens=9))


def test_without_names_of_models_only_prompts_are_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{k: v for k, v in row.items() if "generator" not in k} for row in rows(6)]
    asked = settings(tmp_path, lines)
    given = ["--model", TINY, "--preferences", asked.preferences[0], "--out", asked.out, "--within", 1]
    assert run(main, *given, "--pairs", 12, "--prompt-folds", 2) == 0
    found = json.loads(capsys.readouterr().out)["agreement"]["unseen prompts"]
    assert (found["pairs"], found["prompts"], found["models"]) == (12, 6, 0)


# The head ------------------------------------------------------------------------------------------------


def test_what_length_explains_is_not_put_down_to_quality() -> None:
    chance = np.random.default_rng(0)
    quality, lengths = chance.normal(size=(2000, 1)), chance.normal(size=2000)
    features = quality + lengths[:, None]  # length shows in what the judge sees
    wins = chance.random(2000) < 1 / (1 + np.exp(-(quality[:, 0] + 2 * lengths)))
    weights = fit_head(features, lengths, wins, penalty=1e-6)
    assert weights == pytest.approx([1, 1], abs=0.25)
    assert fit_head(-features, -lengths, ~wins, penalty=1e-6) == pytest.approx(weights, abs=1e-3)


def test_what_goes_with_length_is_taken_off_the_features() -> None:
    chance = np.random.default_rng(1)
    texts = ["x" * int(size) for size in chance.integers(1, 2000, 300)]
    terms, quality = length_terms(texts), chance.normal(size=(300, 1))
    features = quality + terms @ [[3.0], [-0.5]] + 7
    rest = features - terms @ length_effects(features, terms)
    assert np.corrcoef(rest[:, 0], quality[:, 0])[0, 1] > 0.99
    assert abs(np.corrcoef(rest[:, 0], terms[:, 0])[0, 1]) < 1e-9


# The preferences -----------------------------------------------------------------------------------------


def comparison(prompt: int, model: str) -> Comparison:
    return Comparison(f"prompt {prompt}", ("a", "b"), ("reference", model), True)


def test_what_is_judged_shares_neither_prompt_nor_model_with_what_was_learned() -> None:
    made = [comparison(prompt, model) for prompt in range(10) for model in "abcde"]
    folds = Folds(made, 5, 3, seed=0)
    judged: list[int] = []
    for known, unseen in folds.blocks():
        judged += unseen
        assert not {made[i].prompt for i in known} & {made[i].prompt for i in unseen}
        assert {made[i].models[1] for i in known}.isdisjoint(made[i].models[1] for i in unseen)
    assert sorted(judged) == [*range(50)]
    assert sorted(i for _, unseen in folds.blocks(unseen_models=False) for i in unseen) == [*range(50)]


def test_pairs_are_drawn_from_all_prompts_alike() -> None:
    made = [comparison(prompt, model) for prompt in range(10) for model in "abcde"[: 1 + prompt // 2]]
    assert {one.prompt for one in draw(made, 10, seed=1)} == {f"prompt {number}" for number in range(10)}
    assert sorted(map(made.index, draw(made, 0, seed=1))) == [*range(len(made))]


def test_ties_and_answers_that_cannot_be_compared_are_left_out_and_counted(tmp_path: Path) -> None:
    row = {"instruction": "p", "output_1": "a", "output_2": "b", "note": "any"}
    lines = [{**row, "preference": value} for value in (1, 1.2, 1.9, 1.5, 0, None)]
    lines += [{**row, "output_2": "a", "preference": 1}, {**row, "output_1": " ", "preference": 2}]
    found, counts = read_comparisons([write(tmp_path / "p.jsonl", lines)])
    assert [one.first_wins for one in found] == [True, True, False]
    assert counts == {"rows": 8, "ties": 3, "same": 1, "empty": 1}
    assert Comparison("p", ("a" * 86, "b" * 100), ("", ""), True).near(0.15)
    assert not Comparison("p", ("a" * 84, "b" * 100), ("", ""), True).near(0.15)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"instruction": "p", "output_1": "a", "preference": 1}], ":1: output_2"),
        ([*rows(1)[:2], {**rows(1)[0], "preference": 3}], ":3: a preference"),
        (rows(3), "3 prompts"),
        ([], "0 prompts"),
    ],
)
def test_preferences_of_no_use_are_refused(lines: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        train(settings(tmp_path, lines))


def test_a_base_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        train(settings(tmp_path, model=tmp_path))


def test_a_folder_that_is_no_judge_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no trained judge"):
        qualities(tmp_path, tmp_path, ["a"], "b")
    moved = tmp_path / "judge"
    shutil.copytree(trained / "judge", moved)
    stored = json.loads((moved / "judge.json").read_text())
    (moved / "judge.json").write_text(json.dumps({**stored, "base": "another"}))
    with pytest.raises(InvalidRequestError, match="pasta-tiny"):
        qualities(tmp_path, moved, ["a"], "b")
    with pytest.raises(ValueError, match="judge-model"):
        JudgeSettings(judge="reward")
