# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_runs import run
from pydantic import ValidationError
from safetensors.torch import load_file
from task_codec import task_codec
from transformers import AutoModelForCausalLM
from two_processes import run_in_two

from pasta_async.training.packing import pack_plain, pack_views
from pasta_async.training.pretrain import (
    PretrainSettings,
    Stream,
    main,
    pretrain,
    write_new_model,
)
from pasta_async.training.synthetic import FAMILIES, Example, sample
from pasta_async.training.tokens import encode_views
from pasta_async.training.trainer.rows import log_probabilities, pack_row
from pasta_async.training.trainer.vocabulary import ModelCodec

pytestmark = pytest.mark.usefixtures("one_thread")

CODEC = task_codec()


def asked(example: Example) -> list[int]:
    return CODEC.prompt([{"role": "user", "content": example.prompt}])


def tiny(out: Path, **changes: object) -> PretrainSettings:
    shape = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "inner": 48, "batch": 5}
    settings = {"steps": 6, "warmup": 2, "copying": 15, "save_every": 100}
    return PretrainSettings.model_validate({"out": out, **shape, **settings, **changes})


def metrics(folder: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if "second" not in key} for line in found]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_document_predicts_as_each_view_alone(family: str, tmp_path: Path) -> None:
    write_new_model(tiny(tmp_path), tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    example = sample(family, 5, count_tokens=CODEC.count)
    prompt = asked(example)
    tries = [
        pack_views(CODEC, prompt, example.document),
        pack_plain(CODEC, prompt, sample("chain", 1).document),
    ]
    row = pack_row(tries, 1024, CODEC.end)
    with torch.no_grad():
        packed, _ = log_probabilities(model, row).tolist()
        model.set_attn_implementation("sdpa")
        alone = 0.0
        labels: list[int] = []
        for view in encode_views(CODEC, example.document):
            context, target = [*prompt, *view.context], view.target
            scores = model(input_ids=torch.tensor([context + target])).logits[0].log_softmax(-1)
            places = range(len(context) - 1, len(context) + len(target) - 1)
            alone += sum(scores[place, token].item() for place, token in zip(places, target, strict=True))
            labels += target
    assert row.labels[row.owners == 0].tolist() == labels
    assert packed / len(labels) == pytest.approx(alone / len(labels), abs=1e-5)


def test_no_forced_token_is_a_target() -> None:
    example = sample("totals", 2, count_tokens=CODEC.count)
    trie = pack_views(CODEC, asked(example), example.document)
    targets = [trie.ids[index] for index in trie.targets]
    promises = len(example.document.promises)
    assert targets.count(CODEC.tag_ids.open_async) == 0
    assert targets.count(CODEC.tag_ids.close_async) == promises
    assert targets.count(CODEC.end) == 1
    assert len(set(trie.targets)) == len(trie.targets)


def test_a_document_of_a_stream_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    streams = [Stream(tiny(tmp_path, seed=seed), CODEC) for seed in (1, 1, 2)]
    drawn = [stream.example(number).trees[0].ids for stream in streams for number in (3, 4)]
    assert drawn[:2] == drawn[2:4]
    assert drawn[0] != drawn[4]
    assert drawn[0] != drawn[1]


def test_a_stream_without_tags_has_none_in_either_form(tmp_path: Path) -> None:
    tags = {*CODEC.tag_ids}
    found = [
        [bool(tags & {*stream.example(number).trees[0].ids}) for number in range(20, 60)]
        for stream in (Stream(tiny(tmp_path), CODEC), Stream(tiny(tmp_path, plain=True), CODEC))
    ]
    assert [any(has) for has in found] == [True, False]


def test_training_resumes_exactly_and_writes_a_model(tmp_path: Path) -> None:
    assert pretrain(tiny(tmp_path / "whole"))
    assert not pretrain(tiny(tmp_path / "parts", stop_at=3))
    assert not (tmp_path / "parts/model").exists()
    assert pretrain(tiny(tmp_path / "parts"))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    assert [line["step"] for line in metrics(tmp_path / "parts")] == [1, 2, 3, 4, 5, 6]
    whole, parts = (load_file(tmp_path / run / "model/model.safetensors") for run in ("whole", "parts"))
    assert whole["model.embed_tokens.weight"].dtype == torch.float32
    for name, value in whole.items():
        assert torch.equal(value, parts[name]), name
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/model")
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    codec = ModelCodec(tmp_path / "whole/model")
    assert codec.encode("Kelora") == CODEC.encode("Kelora")
    assert codec.tag_ids == CODEC.tag_ids


def test_two_processes_pretrain_as_one(tmp_path: Path) -> None:
    assert pretrain(tiny(tmp_path / "one"))
    two = tiny(tmp_path / "two", threads=1)
    assert run_in_two(pretrain, two) == [0, 0]
    for one, other in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert other == pytest.approx(one, rel=2e-2)
        assert other["tokens"] == one["tokens"]


def test_the_loss_falls(tmp_path: Path) -> None:
    assert pretrain(tiny(tmp_path, steps=25, lr=1e-2, warmup=5))
    losses = [line["loss"] for line in metrics(tmp_path)]
    assert sum(losses[-3:]) < 0.85 * sum(losses[:3])


def test_the_command_goes_on(tmp_path: Path) -> None:
    flags = ["--hidden", 32, "--layers", 1, "--heads", 1, "--kv-heads", 1, "--inner", 48, "--copying", 0]
    flags += ["--context", 512, "--out", tmp_path, "--batch", 2, "--steps", 2, "--threads", 1]
    assert not run(main, *flags, "--stop-at", 1)
    assert not run(main, *flags)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2]


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    for bad in ({"steps": 0}, {"lr": -1}, {"decay": 2}, {"row_tokens": 100}, {"pools": 3}):
        with pytest.raises(ValidationError):
            tiny(tmp_path, **bad)
