from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from finetune_folders import base_folder
from preference_files import prompt_of

from pasta_async.errors import InvalidRequestError
from pasta_async.training.model import ModelCodec, write_tokenizer
from pasta_async.training.prefer import choose_best
from pasta_async.training.samples import Sample, SampledPrompt, Score

WORDS = ("one", "two", "three", "four", "five")
OUT = {"well_formed": False}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ModelCodec:
    folder = tmp_path_factory.mktemp("pairs")
    write_tokenizer(base_folder(folder / "base", tags=True), folder / "tokenizer")
    return ModelCodec(folder / "tokenizer")


def scored(prompt: SampledPrompt, values: Sequence[tuple[float, float]]) -> dict[tuple[str, int], Score]:
    return {
        (prompt.id, number): Score(id=prompt.id, number=number, speedup=speedup, quality=quality)
        for number, (speedup, quality) in enumerate(values)
    }


def chosen(
    codec: ModelCodec,
    values: Sequence[tuple[float, float]],
    weight: float = 1.0,
    changes: Mapping[int, dict[str, Any]] | None = None,
    seed: int = 0,
) -> list[Sample]:
    prompt = prompt_of(codec, "p", WORDS[: len(values)], changes)
    best, _ = choose_best([prompt], scored(prompt, values), weight, seed)
    return [sample for _, sample in best]


def number(chosen: list[Sample]) -> int:
    (best,) = chosen
    return best.number


def test_the_weight_decides_what_is_best(codec: ModelCodec) -> None:
    values = [(3.0, 0.0), (1.0, 1.0), (2.0, 0.4), (1.5, 0.2)]
    assert [number(chosen(codec, values, weight)) for weight in (1.0, 8.0, math.inf)] == [0, 1, 1]


def test_equals_are_drawn_for_and_nothing_else_decides(codec: ModelCodec) -> None:
    values = [(9.0, 1.0), (1.0, 1.0), (5.0, 1.0), (1.0, 0.5), (7.0, 0.5)]
    drawn = [number(chosen(codec, values, math.inf, seed=seed)) for seed in range(60)]
    assert {*drawn} == {0, 1, 2}
    assert drawn[:5] == [number(chosen(codec, values, math.inf, seed=seed)) for seed in range(5)]
    mathematically = [(1.2, 0.5), (2.2, 0.25), (1.0, 0.1)]  # both 3.2 with lambda 4, up to rounding
    assert {number(chosen(codec, mathematically, 4.0, seed=seed)) for seed in range(20)} == {0, 1}


def test_ties_and_the_lonely_are_left_out_and_counted(codec: ModelCodec) -> None:
    names = {
        "fine": [(1.0, 0.1), (1.0, 0.9)],
        "tie": [(1.0, 0.5), (2.0, 0.5)],
        "same": [(1.0, 0.1), (1.0, 0.9)],  # one answer twice, a judge that contradicts itself
        "few": [(1.0, 0.1), (1.0, 0.9)],
        "none": [(1.0, 0.1), (1.0, 0.9)],
    }
    prompts = [
        prompt_of(codec, "fine", WORDS[:2]),
        prompt_of(codec, "tie", WORDS[:2]),
        prompt_of(codec, "same", (WORDS[0], WORDS[0])),
        prompt_of(codec, "few", WORDS[:3], {1: {"exact": False}, 2: {"exact": False}}),
        prompt_of(codec, "none", WORDS[:2], {0: OUT, 1: OUT}),
    ]
    scores = {key: score for prompt in prompts for key, score in scored(prompt, names[prompt.id]).items()}
    pairs, counts = choose_best(prompts, scores, math.inf)
    assert [prompt.id for prompt, _ in pairs] == ["fine"]
    assert counts == {"chosen": 1, "ties": 2, "few": 1, "no_best": 1}


def test_only_sound_answers_win_and_plain_ones_only_where_most_are_plain(codec: ModelCodec) -> None:
    tea = "Tea has a long history in China."
    plain, sound = "Both are drinks.", f'<promise topic="tea"/><async>{tea}</async>'
    twice = sound + '<promise topic="tea"/><async>Tea is grown on hills in the south.</async>'
    values = [(1.0, 1.0), (1.0, 0.9), (1.5, 0.1), (9.0, 1.0)]

    def best(answers: Sequence[str]) -> list[int]:
        prompt = prompt_of(codec, "p", answers)
        pairs, _ = choose_best(
            [prompt, prompt_of(codec, "q", WORDS[:2])],
            scored(prompt, values)
            | {("q", n): Score(id="q", number=n, speedup=n, quality=0) for n in (0, 1)},
            1.0,
            sound_only=True,
        )
        return [best.number for prompt, best in pairs if prompt.id == "p"]

    assert best([plain, "Others are plain too.", sound, twice]) == [2]
    assert best([plain, "Others are plain too.", "So is this one.", twice]) == [0]
    assert best([plain, twice, twice, twice]) == []


def test_a_malformed_answer_never_wins(codec: ModelCodec) -> None:
    values = [(9.0, 1.0), (2.0, 0.5), (1.0, 0.5)]
    assert number(chosen(codec, values, 1.0, {0: OUT})) == 1
    equal = [(1.0, 0.5), (1.0, 0.5)]
    assert number(chosen(codec, equal, 1.0, {0: OUT})) == 1  # no tie: one of them is malformed


def test_samples_and_scores_have_to_match(codec: ModelCodec) -> None:
    prompt = prompt_of(codec, "p", WORDS[:3])
    scores = scored(prompt, [(1.0, 0.1), (1.0, 0.9), (1.0, 0.3)])
    few = {key: score for key, score in scores.items() if key != ("p", 1)}
    partial, _ = choose_best([prompt], few, 1.0)  # a judge may have failed
    assert [best.number for _, best in partial] == [2]
    with pytest.raises(InvalidRequestError):
        choose_best([prompt], {("p", 0): scores["p", 0]}, 1.0)
    with pytest.raises(InvalidRequestError):
        choose_best([prompt], scored(prompt, [(1.0, 0.5)] * 3), 1.0)
