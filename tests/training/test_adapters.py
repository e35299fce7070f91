"""Adapters that the trainer wrote: opened with their base, exported, shipped; and what is refused."""

# torch, transformers and safetensors leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta_async.backends.local import export as exporting
from pasta_async.backends.local.adapter import open_adapter, open_checkpoint
from pasta_async.backends.local.checkpoint import expected_shapes
from pasta_async.backends.local.export import export_folder
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.training import ship
from tests.helpers import local_models
from tests.helpers.adapter_folders import AdapterRun, adapter_run
from tests.helpers.commands_run import failed, status

CHAT = [{"role": "user", "content": "Tell 0: 12 <sync/> 漢字"}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AdapterRun:
    return adapter_run(tmp_path_factory.mktemp("adapter"))


def bare(run: AdapterRun, folder: Path) -> Path:
    """The adapter without a tokenizer, as it ships."""
    copy = Path(shutil.copytree(run.adapter, folder / "bare"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    return copy


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_and_its_base_are_the_merged_model(kind: str, tied: bool, tmp_path: Path) -> None:
    run = adapter_run(tmp_path, kind, tied=tied)
    merged, adapted = open_checkpoint(run.model), open_checkpoint(run.adapter)
    assert adapted.config == merged.config
    for name in expected_shapes(merged.config):
        torch.testing.assert_close(adapted.tensor(name).float(), merged.tensor(name), atol=1e-6, rtol=1e-5)
    for folder in (run.adapter, bare(run, tmp_path)):
        ours, theirs = open_checkpoint(folder).tokenizer(), merged.tokenizer()
        assert (ours.tags, ours.end_ids, ours.vocab_size) == (theirs.tags, theirs.end_ids, theirs.vocab_size)
        for kwargs in ({}, {"pasta": False}):
            assert ours.encode_chat(CHAT, kwargs) == theirs.encode_chat(CHAT, kwargs)


def test_an_adapter_with_rows_of_both_tables_parts_a_base_that_has_one(tmp_path: Path) -> None:
    run = adapter_run(tmp_path / "apart", tied=False)
    base = Path(shutil.copytree(run.base, tmp_path / "tied"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    adapted, apart = open_adapter(run.adapter, open_checkpoint(base)), open_checkpoint(run.adapter)
    assert not adapted.config.tied and not adapted.raw["tie_word_embeddings"]
    head, embedding = adapted.tensor("lm_head.weight"), adapted.tensor("model.embed_tokens.weight")
    tags = [*(apart.tokenizer().tags or ())]
    torch.testing.assert_close(head[tags], apart.tensor("lm_head.weight")[tags])
    torch.testing.assert_close(head[:20], embedding[:20])


def test_an_adapter_without_rows_of_the_output_layer_needs_a_base_without_one(tmp_path: Path) -> None:
    run = adapter_run(tmp_path / "tied", tied=True)
    other = adapter_run(tmp_path / "apart", tied=False)
    with pytest.raises(UnsupportedModelError):
        open_adapter(run.adapter, open_checkpoint(other.base)).tokenizer()


@pytest.mark.parametrize("damage", [{"added_tokens": None}, {"added_tokens": [5]}, {"model": None}], ids=str)
def test_a_malformed_tokenizer_of_the_base_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    run = adapter_run(tmp_path, tied=True)
    path = run.base / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    (run.adapter / "tokenizer.json").unlink()
    checkpoint = open_adapter(run.adapter, open_checkpoint(run.base))
    with pytest.raises(UnsupportedModelError):
        checkpoint.tokenizer()
    with pytest.raises(UnsupportedModelError):
        exporting.export_folder(checkpoint, tmp_path / "out", "float32")


# Export ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_bytes", [exporting.FILE_BYTES, 20_000])
def test_transformers_loads_an_export(
    run: AdapterRun, file_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "FILE_BYTES", file_bytes)
    adapted, out = open_checkpoint(bare(run, tmp_path)), tmp_path / "out"
    export_folder(adapted, out)
    exported: Any = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    text = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(exported(ids).logits, merged(ids).logits, atol=1e-4, rtol=1e-4)
    assert exported.generation_config.eos_token_id == [*adapted.tokenizer().end_ids]
    again = open_checkpoint(out)
    assert again.config == adapted.config
    assert again.tokenizer().encode_chat(CHAT, {}) == adapted.tokenizer().encode_chat(CHAT, {})
    assert (len([*out.glob("*.safetensors")]) > 1) == (file_bytes == 20_000)
    assert not [*tmp_path.glob("*.partial")]


def test_an_export_is_whole_or_not_there(
    run: AdapterRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, out = open_checkpoint(run.model), tmp_path / "out"

    def broken(name: str) -> torch.Tensor:
        raise OSError(name)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="embed_tokens"):
        patch.setattr(checkpoint, "tensor", broken)
        export_folder(checkpoint, out)
    assert [*tmp_path.iterdir()] == []
    out.mkdir()
    with pytest.raises(InvalidRequestError):
        export_folder(checkpoint, out)


# What ships ------------------------------------------------------------------------------------------------


def test_what_ships_is_small_and_the_same_model(run: AdapterRun, tmp_path: Path) -> None:
    out = tmp_path / "shipped"
    out.mkdir()
    (out / "README.md").write_text("A card.")
    options = ["--base", run.base, "--base-name", "ours/base", "--out", out]
    assert status(ship.main, "--adapter", run.adapter, *options) == 0
    assert {path.name for path in out.iterdir()} == {
        *("README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja"),
        "generation_config.json",
    }
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "ours/base"
    shipped, trained = open_checkpoint(out, run.base), open_checkpoint(run.adapter)
    assert shipped.tokenizer().encode_chat(CHAT, {}) == trained.tokenizer().encode_chat(CHAT, {})
    for name in expected_shapes(trained.config):
        torch.testing.assert_close(shipped.tensor(name), trained.tensor(name), atol=2e-3, rtol=0)


def test_what_users_would_not_have_is_not_shipped(run: AdapterRun, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run.adapter, tmp_path / "adapter"))
    options = ["--base", run.base, "--base-name", "ours/base", "--out", tmp_path / "shipped"]
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert "tokenizer" in failed(ship.main, "--adapter", folder, *options)
    weighed(lambda tensors: [value.fill_(1e6) for value in tensors.values()])(folder)
    assert "float16" in failed(ship.main, "--adapter", folder, *options)


# What is refused -------------------------------------------------------------------------------------------


configured = partial(local_models.configured, "adapter_config.json")
weighed = partial(local_models.weighed, "adapter_model.safetensors")


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(b"pickle")


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "not LoRA": (configured(peft_type="IA3"), "peft_type"),
    "whole modules": (configured(modules_to_save=["lm_head"]), "modules_to_save"),
    "a changed base": (configured(init_lora_weights="pissa"), "init_lora_weights"),
    "something new": (configured(use_nextlora=1), "use_nextlora"),
    "no rank": (configured(r=0), "r is 0"),
    "rows of other modules": (configured(trainable_token_indices={"q_proj": [1]}), "q_proj"),
    "rows of no tags": (configured(trainable_token_indices=[1, 2, 3, 4, 5, 6]), "tags"),
    "another rank": (configured(r=3), r"lora_A.*\[2, 32\], not \[3, 32\]"),
    "half an adapter": (weighed(lambda tensors: tensors.pop(Q + "B.weight")), "q_proj.lora_B"),
    "a module of its own": (weighed(lambda t: t.update({Q + "C.weight": torch.ones(1)})), "q_proj.lora_C"),
    "an adapted norm": (
        weighed(lambda t: t.update({"base_model.model.model.norm.lora_A.weight": torch.ones(2, 32)})),
        r"model\.norm\.lora_A",
    ),
    "integers": (weighed(lambda t: t.update({Q + "A.weight": t[Q + "A.weight"].int()})), "type I32"),
    "pickle": (pickled, "safetensors"),
    "no base": (configured(base_model_name_or_path="nowhere/model"), "nowhere/model"),
    "no base named": (configured(base_model_name_or_path=None), "base_model_name_or_path"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_what_cannot_be_merged_is_refused_by_name(damage: str, run: AdapterRun, tmp_path: Path) -> None:
    folder = bare(run, tmp_path)
    change, reason = DAMAGE[damage]
    change(folder)
    await local_models.refused(folder, reason)


def test_a_base_is_found_beside_the_adapter(run: AdapterRun, tmp_path: Path) -> None:
    folder = bare(run, tmp_path)
    shutil.copytree(run.base, folder / "base")
    configured(base_model_name_or_path="base")(folder)
    assert open_checkpoint(folder).config.vocab_size % 64 == 0
