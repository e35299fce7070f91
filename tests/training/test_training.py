# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from command_runs import run
from pydantic import ValidationError
from task_codec import task_codec
from transformers import AutoModelForCausalLM

from pasta_async.training.corpus.tokens import encode_views
from pasta_async.training.packing import pack_plain, pack_views
from pasta_async.training.pretrain import (
    Batches,
    Config,
    Trainer,
    build_model,
    collate,
    loss_of,
    main,
    train_with_broken_rules,
)
from pasta_async.training.synthetic import FAMILIES, sample
from pasta_async.training.trainer.vocabulary import ModelCodec

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.training.packing import Trie
    from pasta_async.training.synthetic import Example

pytestmark = pytest.mark.usefixtures("one_thread")

CODEC = task_codec()


def asked(example: Example) -> list[int]:
    return CODEC.prompt([{"role": "user", "content": example.prompt}])


def tiny(out: Path, **changes: object) -> Config:
    shape = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "inner": 48, "tokens": 512}
    settings = {"steps": 6, "warmup": 2, "copy_pools": 1, "micro_batches": 2, "save_every": 100}
    return Config.model_validate({"out": out, **shape, **settings, **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_document_predicts_as_each_view_alone(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(tiny(tmp_path), CODEC.vocab_size).eval()
    example = sample(family, 5, count_tokens=CODEC.count)
    prompt = asked(example)
    trie = pack_views(CODEC, prompt, example.document)
    batch = collate([trie, pack_plain(CODEC, prompt, sample("chain", 1).document)])
    with torch.no_grad():
        packed = model(input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions).logits[0]
        alone: list[torch.Tensor] = []
        labels: list[int] = []
        for view in encode_views(CODEC, example.document):
            context, target = [*prompt, *view.context], view.target
            logits = model(input_ids=torch.tensor([context + target])).logits[0]
            alone += list(logits[len(context) - 1 : -1])
            labels += target
    assert [trie.ids[index] for index in trie.targets] == labels
    got = packed[[trie.parents[index] for index in trie.targets]]
    torch.testing.assert_close(got, torch.stack(alone), atol=1e-5, rtol=1e-4)


def test_no_forced_token_is_a_target() -> None:
    example = sample("totals", 2, count_tokens=CODEC.count)
    trie = pack_views(CODEC, asked(example), example.document)
    targets = [trie.ids[index] for index in trie.targets]
    promises = len(example.document.promises)
    assert targets.count(CODEC.tag_ids.open_async) == 0
    assert targets.count(CODEC.tag_ids.close_async) == promises
    assert targets.count(CODEC.end) == 1
    assert len(set(trie.targets)) == len(trie.targets)


def test_hidden_chunks_are_in_no_context_of_main() -> None:
    example = sample("totals", 2, count_tokens=CODEC.count)
    prompt, opens, closes = asked(example), CODEC.tag_ids.open_async, CODEC.tag_ids.close_async
    hidden = pack_views(CODEC, prompt, example.document, (opens, closes))
    whole = pack_views(CODEC, prompt, example.document)
    assert [hidden.ids[i] for i in hidden.targets] == [whole.ids[i] for i in whole.targets]

    def behind_end(trie: Trie) -> list[int]:
        node = trie.ids.index(CODEC.end, len(prompt))
        path: list[int] = []
        while node >= 0:
            path.append(trie.ids[node])
            node = trie.parents[node]
        return path

    promises = len(example.document.promises)
    assert behind_end(whole).count(opens) == promises
    assert behind_end(hidden).count(opens) == 0
    assert behind_end(hidden).count(CODEC.tag_ids.sync) == 1


def test_data_are_the_same_from_the_same_place() -> None:
    first = Batches(CODEC, seed=1, tokens=512, copy_pools=2, pool_size=12)
    stream = iter(first)
    for _ in range(7):
        next(stream)
    second = Batches(CODEC, 1, 512, 2, first.pool, first.index, pool_size=12)
    for _, a, b in zip(range(4), stream, iter(second), strict=False):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_training_resumes_exactly_and_writes_a_model(tmp_path: Path) -> None:
    Trainer(tiny(tmp_path / "whole")).run()
    Trainer(tiny(tmp_path / "parts", stop_at=3)).run()
    resumed = Trainer(tiny(tmp_path / "parts"))
    assert resumed.step == 3
    resumed.run()
    states = [torch.load(tmp_path / run / "checkpoint.pt") for run in ("whole", "parts")]
    assert states[0]["step"] == states[1]["step"] == 6
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name]), name
    assert len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) == 2
    last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 6
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    assert model.config.architectures == ["LlamaForCausalLM"]
    expected = states[0]["model"]["model.embed_tokens.weight"]
    torch.testing.assert_close(model.get_input_embeddings().weight, expected, atol=1e-3, rtol=1e-3)


def test_a_copy_learns_to_break_the_rules(tmp_path: Path) -> None:
    Trainer(tiny(tmp_path / "model", steps=1)).run()
    train_with_broken_rules(tmp_path / "model", tmp_path / "copy", steps=2, batch=2)
    codec = ModelCodec(tmp_path / "copy")
    assert codec.encode("Kelora") == CODEC.encode("Kelora")
    old: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    new: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    assert not torch.equal(old.get_input_embeddings().weight, new.get_input_embeddings().weight)


def test_the_loss_falls(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path, steps=30, lr=1e-2, warmup=5))
    batch = next(iter(trainer.data))
    before = float(loss_of(trainer.model, batch).detach())
    for _ in range(12):
        trainer.train_step([batch, batch])
    assert float(loss_of(trainer.model, batch).detach()) < 0.7 * before


def test_the_command_trains_and_goes_on(tmp_path: Path) -> None:
    flags = ["--hidden", 32, "--layers", 1, "--heads", 1, "--kv-heads", 1, "--inner", 48, "--copy-pools", 0]
    flags += ["--context", 512, "--out", tmp_path, "--micro-batches", 1, "--tokens", 512, "--threads", 1]
    for steps in (1, 2):
        assert not run(main, *flags, "--steps", steps)
    assert torch.load(tmp_path / "checkpoint.pt")["step"] == 2


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    for bad in ({"steps": 0}, {"lr": -1}, {"decay": 2}, {"epochs": 3}):
        with pytest.raises(ValidationError):
            tiny(tmp_path, **bad)
