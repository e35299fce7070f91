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
from pasta_async.training.model import ModelCodec, write_tokenizer
from pasta_async.training.prefer import PreferSettings, prefer
from pasta_async.training.samples import read_samples

pytestmark = pytest.mark.usefixtures("one_thread")

SPEEDS = (1.5, 3.0, 1.0, 2.0, 2.5)
"""Speed-ups of the samples: `ANSWERS[1]` is the best and `ANSWERS[2]` the worst."""


def ready(folder: Path) -> ModelCodec:
    """Make a model folder, and samples and scores for it."""
    base = base_folder(folder / "base", tags=True)
    write_tokenizer(base, folder / "tokenizer")
    codec = ModelCodec(folder / "tokenizer")
    names = [f"p{number}" for number in range(5)]
    sampled = [prompt_of(codec, name, ANSWERS) for name in names]
    write_files(folder, sampled, {name: [(speed, 0.5) for speed in SPEEDS] for name in names})
    return codec


def settings(folder: Path, **changes: Any) -> PreferSettings:
    files = {"samples": folder / "samples.jsonl", "scores": folder / "scores.jsonl"}
    values = {"model": folder / "base", "out": folder / "run", "quality_weight": 1, **files}
    values |= {"batch": 2, "row_tokens": 1024, "steps": 4, "lr": 2e-4}
    return PreferSettings.model_validate({**values, **changes})


def lines(folder: Path) -> list[dict[str, float]]:
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if "second" not in key} for line in metrics]


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
    curve = lines(tmp_path / "run")
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]


def test_what_does_not_fit_is_refused_before_training(tmp_path: Path) -> None:
    codec = ready(tmp_path)

    def refused(**changes: Any) -> None:
        with pytest.raises(InvalidRequestError):
            prefer(settings(tmp_path, **changes))
        assert not (tmp_path / "run" / "metrics.jsonl").exists()

    refused(row_tokens=32)
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
