"""Stage 2: what is chosen, what is minimised, what is learned, and what is refused."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pasta_async.errors import InvalidRequestError
from pasta_async.lang import parse
from pasta_async.training.data.corpus import write_records
from pasta_async.training.prefer import PreferSettings, choose_best, prefer
from pasta_async.training.samples import Sample, SampledPrompt, Score, read_samples
from pasta_async.training.views import Codec, pack_views
from tests.helpers.finetune_folders import ANSWERS, base_folder, tagged
from tests.helpers.samples import sample, sampled_prompt

SPEEDS = (1.5, 3.0, 1.0, 2.0, 2.5)
"""Speed-ups of the samples: `ANSWERS[1]` is the best and `ANSWERS[2]` the worst."""


def prompt_of(
    codec: Codec, name: str, answers: Sequence[str], changes: Mapping[int, dict[str, Any]] | None = None
) -> SampledPrompt:
    """A prompt with a sample of each answer, whose ids are those that the codec writes."""
    content = f"Tell {name}"
    samples: list[Sample] = []
    for number, written in enumerate(answers):
        document = parse(written)
        trie = pack_views(codec, codec.prompt([{"role": "user", "content": content}]), document)
        values: dict[str, Any] = {"written": written, "tokens": len(trie.targets)}
        values |= {"ids": trie.ids, "parents": trie.parents, "targets": trie.targets}
        samples.append(sample(number, document.text, **{**values, **(changes or {}).get(number, {})}))
    return sampled_prompt(name, content, samples)


def write_files(
    folder: Path, prompts: Sequence[SampledPrompt], values: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """`samples.jsonl` and `scores.jsonl`; the values are speed-up and quality, by prompt and number."""
    write_records(folder / "samples.jsonl", prompts)
    scores = [
        Score(id=name, number=number, speedup=speedup, quality=quality)
        for name, pairs in values.items()
        for number, (speedup, quality) in enumerate(pairs)
    ]
    write_records(folder / "scores.jsonl", scores)


def ready(folder: Path) -> Codec:
    """Make a model folder, and samples and scores for it."""
    _, codec = tagged(base_folder(folder / "base", tags=True), folder / "tokenizer")
    names = [f"p{number}" for number in range(5)]
    sampled = [prompt_of(codec, name, ANSWERS) for name in names]
    write_files(folder, sampled, {name: [(speed, 0.5) for speed in SPEEDS] for name in names})
    return codec


def settings(folder: Path, **changes: Any) -> PreferSettings:
    files = {"samples": folder / "samples.jsonl", "scores": folder / "scores.jsonl"}
    values = {"model": folder / "base", "out": folder / "run", "quality_weight": 1, **files}
    values |= {"batch": 2, "row_tokens": 1024, "steps": 4, "lr": 2e-4}
    return PreferSettings.model_validate({**values, **changes})


@pytest.mark.parametrize("kind", ["all weights", "an adapter", "a new adapter"])
def test_what_is_written_can_be_the_mean_with_the_start(kind: str, tmp_path: Path) -> None:
    ready(tmp_path)
    start, name, changes = tmp_path / "base", "model", dict[str, Any]()
    if kind == "an adapter":
        assert prefer(settings(tmp_path, out=tmp_path / "first", steps=2, lora_rank=4))
        start, name = tmp_path / "first" / "adapter", "adapter"
        changes = {"model": start}
    elif kind == "a new adapter":
        changes = {"lora_rank": 4}
    assert prefer(settings(tmp_path, **changes))
    assert prefer(settings(tmp_path, **changes, out=tmp_path / "mean", start_share=0.25))
    before, trained = weights(start), weights(tmp_path / "run" / name)
    for key, value in weights(tmp_path / "mean" / name).items():
        torch.testing.assert_close(value, 0.75 * trained[key] + 0.25 * before[key], atol=1e-6, rtol=0)
    assert max((trained[key] - before[key]).abs().max().item() for key in trained) > 1e-4


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def test_the_best_become_likelier(tmp_path: Path) -> None:
    ready(tmp_path)
    assert prefer(settings(tmp_path, steps=10, batch=5, lr=5e-4))
    curve = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]


def test_what_does_not_fit_is_refused_before_training(tmp_path: Path) -> None:
    codec = ready(tmp_path)

    def refused(**changes: Any) -> None:
        with pytest.raises(InvalidRequestError):
            prefer(settings(tmp_path, **changes))
        assert not (tmp_path / "run" / "metrics.jsonl").exists()

    refused(row_tokens=32)
    sampled = [*read_samples(tmp_path / "samples.jsonl")]

    def with_ids(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
        changes = {n: {"ids": change(s.ids)} for n, s in enumerate(sampled[0].samples)}
        prompts = [prompt_of(codec, prompt.id, ANSWERS, changes) for prompt in sampled]
        write_records(tmp_path / "samples.jsonl", prompts)

    with_ids(lambda ids: (*ids[:-1], 99999))
    refused()  # ids that the model lacks
    with_ids(lambda ids: tuple(range(len(ids))))
    refused()  # no sample holds its prompt
    (tmp_path / "scores.jsonl").write_text("")
    refused()  # no sample has a score


# The best of the samples ----------------------------------------------------------------------------------


WORDS = ("one", "two", "three", "four", "five")
OUT = {"well_formed": False}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    folder = tmp_path_factory.mktemp("pairs")
    _, codec = tagged(base_folder(folder / "base", tags=True), folder / "tokenizer")
    return codec


def scored(prompt: SampledPrompt, values: Sequence[tuple[float, float]]) -> dict[tuple[str, int], Score]:
    return {
        (prompt.id, number): Score(id=prompt.id, number=number, speedup=speedup, quality=quality)
        for number, (speedup, quality) in enumerate(values)
    }


def chosen(
    codec: Codec,
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


def test_the_weight_decides_what_is_best(codec: Codec) -> None:
    values = [(3.0, 0.0), (1.0, 1.0), (2.0, 0.4), (1.5, 0.2)]
    assert [number(chosen(codec, values, weight)) for weight in (1.0, 8.0, math.inf)] == [0, 1, 1]


def test_equals_are_drawn_for_and_nothing_else_decides(codec: Codec) -> None:
    values = [(9.0, 1.0), (1.0, 1.0), (5.0, 1.0), (1.0, 0.5), (7.0, 0.5)]
    drawn = [number(chosen(codec, values, math.inf, seed=seed)) for seed in range(60)]
    assert {*drawn} == {0, 1, 2}
    assert drawn[:5] == [number(chosen(codec, values, math.inf, seed=seed)) for seed in range(5)]
    mathematically = [(1.2, 0.5), (2.2, 0.25), (1.0, 0.1)]  # both 3.2 with lambda 4, up to rounding
    assert {number(chosen(codec, mathematically, 4.0, seed=seed)) for seed in range(20)} == {0, 1}


def test_ties_and_the_lonely_are_left_out_and_counted(codec: Codec) -> None:
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


def test_only_sound_answers_win_and_plain_ones_only_where_most_are_plain(codec: Codec) -> None:
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


def test_a_malformed_answer_never_wins(codec: Codec) -> None:
    values = [(9.0, 1.0), (2.0, 0.5), (1.0, 0.5)]
    assert number(chosen(codec, values, 1.0, {0: OUT})) == 1
    equal = [(1.0, 0.5), (1.0, 0.5)]
    assert number(chosen(codec, equal, 1.0, {0: OUT})) == 1  # no tie: one of them is malformed


def test_samples_and_scores_have_to_match(codec: Codec) -> None:
    prompt = prompt_of(codec, "p", WORDS[:3])
    scores = scored(prompt, [(1.0, 0.1), (1.0, 0.9), (1.0, 0.3)])
    few = {key: score for key, score in scores.items() if key != ("p", 1)}
    partial, _ = choose_best([prompt], few, 1.0)  # a judge may have failed
    assert [best.number for _, best in partial] == [2]
    with pytest.raises(InvalidRequestError):
        choose_best([prompt], {("p", 0): scores["p", 0]}, 1.0)
    with pytest.raises(InvalidRequestError):
        choose_best([prompt], scored(prompt, [(1.0, 0.5)] * 3), 1.0)
