"""Stage 2 as a whole: what is minimised, what is learned, and that a run goes on exactly."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_folders import ANSWERS, base_folder
from preference_files import prompt_of, write_files
from safetensors.torch import load_file

from pasta_async.errors import InvalidRequestError
from pasta_async.training.data.corpus import write_records
from pasta_async.training.model import BaseModel, ModelCodec, write_tokenizer
from pasta_async.training.prefer import (
    BonBon,
    Pair,
    PreferSettings,
    best_of_n_target,
    prefer,
)
from pasta_async.training.rows import log_probabilities, pack_row
from pasta_async.training.samples import Sample, read_samples

pytestmark = pytest.mark.usefixtures("one_thread")

SPEEDS = (1.5, 3.0, 1.0, 2.0, 2.5)
"""Of the samples, so that `ANSWERS[1]` is the best and `ANSWERS[2]` the worst."""


def ready(folder: Path, prompts: int = 5, kind: str = "llama") -> tuple[Path, ModelCodec]:
    """A model folder, and samples and scores for it."""
    base = base_folder(folder / "base", kind, tags=True)
    write_tokenizer(base, folder / "tokenizer")
    codec = ModelCodec(folder / "tokenizer")
    names = [f"p{number}" for number in range(prompts)]
    sampled = [prompt_of(codec, name, ANSWERS) for name in names]
    write_files(folder, sampled, {name: [(speed, 0.5) for speed in SPEEDS] for name in names})
    return base, codec


def settings(folder: Path, **changes: Any) -> PreferSettings:
    files = {"samples": folder / "samples.jsonl", "scores": folder / "scores.jsonl"}
    values = {"model": folder / "base", "out": folder / "run", "quality_weight": 1, **files}
    values |= {"batch": 2, "row_tokens": 1024, "steps": 4, "lr": 2e-4}
    return PreferSettings.model_validate({**values, **changes})


def lines(folder: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if "second" not in key} for line in found]


def alone(model: Any, sample: Sample) -> torch.Tensor:
    """The log-probability of a sample, each of its threads' sequences computed by itself."""
    model.set_attn_implementation("sdpa")
    total, counted = torch.zeros(()), set[int]()
    for target in reversed(sample.targets):
        if target in counted:
            continue
        path = [target]
        while sample.parents[path[-1]] >= 0:
            path.append(sample.parents[path[-1]])
        path.reverse()
        ids = torch.tensor([[sample.ids[index] for index in path]])
        scores = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        for place, index in enumerate(path):
            if index in sample.targets and index not in counted:
                counted.add(index)
                total = total + scores[place - 1, sample.ids[index]]
    assert len(counted) == sample.tokens
    return total


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_loss_and_gradient_are_those_of_each_view_alone(kind: str, tmp_path: Path) -> None:
    base, codec = ready(tmp_path, kind=kind)
    samples = prompt_of(codec, "p", ANSWERS).samples
    pairs = [Pair("a", samples[0], samples[2], 4), Pair("b", samples[4], samples[1], 2)]
    known = {0: (-150.0, -61.5), 1: (-70.25, -99.0)}
    alpha = 0.3
    task = BonBon(pairs, alpha)
    task.reference = known
    model = BaseModel(base, codec.tag_ids).loaded()
    examples = [task.example(number) for number in range(2)]
    row = pack_row([tree for example in examples for tree in example.trees], 1024, codec.end)
    ours, reported = task.loss(log_probabilities(model, row).split([2, 2]), examples)

    theirs = torch.zeros(())
    margins: list[float] = []
    for pair, (best, worst), target in zip(
        pairs, known.values(), (3 * (1 + 1 / 2 + 1 / 3), 1.0), strict=True
    ):
        likely = alone(model, pair.best)
        margin = (likely - best) - (alone(model, pair.worst) - worst)
        margins.append(margin.item())
        theirs = theirs - alpha * likely + (1 - alpha) * (margin - target) ** 2
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert reported["margin"].item() == pytest.approx(sum(margins), rel=1e-5)
    assert reported["accuracy"].item() == sum(margin > 0 for margin in margins)
    assert (reported["best_ratio"] - reported["worst_ratio"]).item() == pytest.approx(sum(margins), rel=1e-4)
    params, scale = list(model.parameters()), theirs.item()
    for a, b in zip(
        torch.autograd.grad(ours / scale, params), torch.autograd.grad(theirs / scale, params), strict=True
    ):
        assert (a - b).abs().max() < 1e-5


def test_imitation_of_the_best_looks_at_no_other_answer(tmp_path: Path) -> None:
    _, codec = ready(tmp_path)
    samples = prompt_of(codec, "p", ANSWERS).samples
    task = BonBon([Pair("a", samples[0], samples[2], 4)], 1.0)
    example = task.example(0)
    assert example.trees == (samples[0].trie,)
    loss, reported = task.loss([torch.tensor([-120.0])], [example])
    assert loss.item() == pytest.approx(120)
    assert reported["nll"].item() == pytest.approx(120 / len(samples[0].targets))


@pytest.mark.parametrize("adapter", [False, True], ids=["all weights", "an adapter"])
def test_what_is_written_can_be_the_mean_with_the_start(adapter: bool, tmp_path: Path) -> None:
    ready(tmp_path)
    start, changes = tmp_path / "base", dict[str, Any]()
    if adapter:
        assert prefer(settings(tmp_path, out=tmp_path / "first", steps=2, lora_rank=4))
        start = tmp_path / "first" / "adapter"
        changes = {"model": start}
    assert prefer(settings(tmp_path, **changes))
    written = tmp_path / "run" / ("adapter" if adapter else "model")
    trained, before = weights(written), weights(start)
    assert prefer(settings(tmp_path, **changes, start_share=0.25))  # the same run: it is only written anew
    moved = 0.0
    for name, value in weights(written).items():
        torch.testing.assert_close(value, 0.75 * trained[name] + 0.25 * before[name], atol=1e-6, rtol=0)
        moved = max(moved, (trained[name] - before[name]).abs().max().item())
    assert moved > 1e-4


def test_the_mean_of_a_new_adapter_with_the_start_is_that_of_the_weights(tmp_path: Path) -> None:
    ready(tmp_path)
    assert prefer(settings(tmp_path, lora_rank=4))
    trained, before = weights(tmp_path / "run" / "model"), weights(tmp_path / "base")
    assert prefer(settings(tmp_path, lora_rank=4, start_share=0.25))
    mean = weights(tmp_path / "run" / "model")
    moved = [name for name in before if not torch.equal(trained[name], before[name])]
    assert len(moved) > 5
    for name in moved:
        torch.testing.assert_close(mean[name], 0.75 * trained[name] + 0.25 * before[name], atol=1e-6, rtol=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def test_margins_move_to_the_target(tmp_path: Path) -> None:
    ready(tmp_path)
    assert prefer(settings(tmp_path, steps=30, batch=5, alpha=0.0, lr=5e-4))
    curve = lines(tmp_path / "run")
    target = best_of_n_target(5)
    assert curve[0]["margin"] == pytest.approx(0, abs=1e-2)
    assert curve[0]["loss"] == pytest.approx(target**2, rel=1e-2)
    assert curve[-1]["margin"] == pytest.approx(target, rel=0.1)
    assert curve[-1]["accuracy"] == 1
    assert curve[-1]["loss"] < 0.02 * curve[0]["loss"]
    assert curve[0]["nll"] > curve[-1]["nll"]


def test_a_run_goes_on_exactly(tmp_path: Path) -> None:
    ready(tmp_path)
    assert prefer(settings(tmp_path))
    parts = tmp_path / "parts"
    assert not prefer(settings(tmp_path, out=parts, stop_at=2))
    assert prefer(settings(tmp_path, out=parts))
    assert lines(parts) == lines(tmp_path / "run")
    whole, again = (load_file(out / "model" / "model.safetensors") for out in (tmp_path / "run", parts))
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    with pytest.raises(InvalidRequestError, match="quality_weight"):
        prefer(settings(tmp_path, out=parts, quality_weight=8))
    with pytest.raises(InvalidRequestError, match="alpha"):
        prefer(settings(tmp_path, out=parts, alpha=0.5))


def test_what_does_not_fit_is_refused_before_training(tmp_path: Path) -> None:
    _, codec = ready(tmp_path)

    def refused(**changes: Any) -> None:
        with pytest.raises(InvalidRequestError):
            prefer(settings(tmp_path, **changes))
        assert not (tmp_path / "run" / "metrics.jsonl").exists()

    refused(row_tokens=64, alpha=0.5)
    sampled = [*read_samples(tmp_path / "samples.jsonl")]

    def with_ids(ids: tuple[int, ...]) -> None:
        changes = {n: {"ids": ids[: len(s.ids)]} for n, s in enumerate(sampled[0].samples)}
        prompts = [prompt_of(codec, prompt.id, ANSWERS, changes) for prompt in sampled]
        write_records(tmp_path / "samples.jsonl", prompts)

    with_ids((3,) * 10 + (99999,) * 1000)
    refused()  # ids that the model lacks
    with_ids(tuple(range(300)) * 10)
    refused()  # no sample holds its prompt
    (tmp_path / "scores.jsonl").write_text("")
    refused()  # no sample has a score
