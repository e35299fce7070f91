# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pasta_async.errors import InvalidRequestError, TrainingError, UnsupportedModelError
from pasta_async.training import trainer
from pasta_async.training.data.corpus import read_records
from pasta_async.training.model import ModelMaker
from pasta_async.training.sft import SftSettings, sft, supervised
from pasta_async.training.views import Codec
from tests.helpers.adapter_folders import adapter_run
from tests.helpers.finetune_folders import base_folder, data_file, tagged
from tests.helpers.local_models import TEMPLATE, engine_greedy, greedy

KILLED_SFT = Path(__file__).parents[1] / "helpers" / "killed_sft.py"
CHAT = [{"role": "user", "content": "Tell 0"}]


def settings(folder: Path, **changes: Any) -> SftSettings:
    """A run of a few updates, its base model and data made where they are missing."""
    if not (folder / "base").exists():
        base_folder(folder / "base", changes.pop("kind", "llama"))
        data_file(folder / "data.jsonl")
    values = {"model": folder / "base", "data": [folder / "data.jsonl"], "out": folder / "run"}
    values |= {"batch": 3, "row_tokens": 512, "steps": 4, "lr": 3e-3}
    return SftSettings.model_validate({**values, **changes})


def curve(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in ("step", "loss", "lr", "grad_norm", "tokens")} for line in lines]


@contextmanager
def interrupted(step: int, sent: signal.Signals = signal.SIGTERM) -> Generator[None]:
    """A run inside is told in the middle of this update to leave, which it does behind it."""
    update = trainer.Loop.update

    def interrupt(self: trainer.Loop) -> dict[str, float]:
        if self.step == step - 1:
            os.kill(os.getpid(), sent)
        return update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Loop, "update", interrupt)
        yield


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
async def test_a_base_model_learns_the_answers(kind: str, tmp_path: Path) -> None:
    assert sft(settings(tmp_path, kind=kind, form="both", steps=10, batch=10))
    losses = [line["loss"] for line in curve(tmp_path / "run")]
    assert len(losses) == 10 and losses[-1] < 0.8 * losses[0]
    model = tmp_path / "run" / "model"
    codec = Codec(model)
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for pasta in (True, False):
        prompt = codec.prompt(CHAT, pasta)
        assert await engine_greedy(model, prompt, 16) == greedy(loaded, prompt, 16)
    ends = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    assert ends[0] == codec.end
    assert not (tmp_path / "run" / "model.partial").exists()


def test_the_plain_form_may_be_learned_from_every_third_answer(tmp_path: Path) -> None:
    _, codec = tagged(base_folder(tmp_path / "base"), tmp_path / "tokenizer", both=True)
    records = [*read_records(data_file(tmp_path / "data.jsonl"))]
    task = supervised(records, codec, settings(tmp_path, form="both", plain_every=3))
    pasta = codec.prompt(records[0].messages)
    are_tagged = [task.example(index).ids[: len(pasta)] == pasta for index in range(task.count)]
    assert are_tagged == [True] * len(records) + [False] * math.ceil(len(records) / 3)


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path) -> None:
    assert sft(settings(tmp_path))
    parts = tmp_path / "parts"
    with interrupted(2):
        assert not sft(settings(tmp_path, out=parts))
    assert not (parts / "model").exists()
    with (parts / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1e9}\n{"step": 4, "lo')  # as after a kill between two checkpoints
    assert sft(settings(tmp_path, out=parts))
    assert curve(parts) == curve(tmp_path / "run")
    whole, again = (load_file(out / "model" / "model.safetensors") for out in (tmp_path / "run", parts))
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    assert sft(settings(tmp_path, out=parts))  # nothing is left to do
    assert curve(parts) == curve(tmp_path / "run")


def test_a_run_does_not_go_on_with_other_settings_or_data(tmp_path: Path) -> None:
    sft(settings(tmp_path, steps=2))
    with pytest.raises(InvalidRequestError, match="lr"):
        sft(settings(tmp_path, steps=2, lr=0.1))
    data_file(tmp_path / "data.jsonl", copies=2)
    with pytest.raises(InvalidRequestError, match="data"):
        sft(settings(tmp_path, steps=2))


def test_a_run_goes_on_with_what_is_in_its_files_wherever_they_are(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    moved = tmp_path / "moved"
    run = {"steps": 2, "chat_template": template, "lora_rank": 2}
    with interrupted(1):
        assert not sft(settings(tmp_path, **run))
    (tmp_path / "base").rename(moved)
    assert sft(settings(tmp_path, **run, model=moved))
    template.write_text(TEMPLATE + "\n")
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        sft(settings(tmp_path, **run, model=moved))
    template.write_text(TEMPLATE)
    weights = load_file(moved / "model.safetensors")
    save_file({name: value * 2 for name, value in weights.items()}, moved / "model.safetensors")
    with pytest.raises(InvalidRequestError, match="model"):
        sft(settings(tmp_path, **run, model=moved))


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_leaves(sent: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(sent)
    with interrupted(2, sent):
        assert not sft(settings(tmp_path))
    assert signal.getsignal(sent) == before
    assert [line["step"] for line in curve(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
    assert sft(settings(tmp_path, row_tokens=1024))  # may change, if memory was too small
    assert [line["step"] for line in curve(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_run_that_does_not_fit_says_what_can_still_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interrupted(1):
        assert not sft(settings(tmp_path))

    def full(self: trainer.Loop) -> dict[str, float]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(trainer.Loop, "update", full)
    with pytest.raises(TrainingError, match=r"--row-tokens .* --recompute or --lora-rank$"):
        sft(settings(tmp_path, out=tmp_path / "new"))
    with pytest.raises(TrainingError, match=r"--row-tokens .* --recompute$"):
        sft(settings(tmp_path))


def test_the_rows_of_the_tags_learn_at_a_rate_of_their_own(tmp_path: Path) -> None:
    slow = settings(tmp_path, batch=10, steps=1, form="both", lora_rank=2, tag_rate=1)
    fast = slow.model_copy(update={"out": tmp_path / "fast", "tag_rate": 20})
    assert sft(slow) and sft(fast)
    codec = Codec(tmp_path / "run" / "model")
    start = ModelMaker(tmp_path / "base", codec.tag_ids).make().state_dict()
    moved = [
        {name: value - start[name] for name, value in load_file(run.out / "model/model.safetensors").items()}
        for run in (slow, fast)
    ]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tags, others = list(codec.tag_ids), list(range(min(codec.tag_ids)))
        once, often = (change[name] for change in moved)
        assert once[tags].abs().max() > 0
        torch.testing.assert_close(often[tags], 20 * once[tags], rtol=1e-3, atol=1e-6)
        assert torch.equal(often[others], once[others])


@pytest.mark.parametrize(
    ("tied", "lora_rank", "rows"),
    [(True, 0, {}), (True, 2, {}), (False, 0, {}), (False, 2, {}), (False, 0, {"vocab_size": 448})],
)
def test_a_tag_that_is_never_used_stays_at_the_mean_row(
    tied: bool, lora_rank: int, rows: dict[str, Any], tmp_path: Path
) -> None:
    """Without estimates the tag in front of them is in no example, and its logit stays the mean of all.

    So does it where the base has spare rows, as Qwen's models have, with anything in them.
    """
    base_folder(tmp_path / "base", tie_word_embeddings=tied, **rows)
    data_file(tmp_path / "data.jsonl")
    first_run = settings(tmp_path, estimates="none", lora_rank=lora_rank, steps=4, lr=1e-2)
    assert sft(first_run)
    again = {"model": tmp_path / "run" / ("adapter" if lora_rank else "model"), "out": tmp_path / "again"}
    assert sft(first_run.model_copy(update=again))
    start = load_file(tmp_path / "base" / "model.safetensors")
    names = [name for name in start if "embed_tokens" in name or "lm_head" in name]
    assert len(names) == 2 - tied
    for run in ("run", "again"):
        codec = Codec(tmp_path / run / "model")
        unused, *used = codec.tag_ids.tokens, *codec.tag_ids[:1], *codec.tag_ids[2:]
        weights = load_file(tmp_path / run / "model" / "model.safetensors")
        for name in names:
            mean = start[name].mean(0)
            torch.testing.assert_close(weights[name][unused], mean, rtol=0, atol=1e-6)
            assert (weights[name][used] - mean).abs().sum(1).min() > 1e-2
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model", dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([codec.prompt(CHAT)])).logits[0]
    assert logits.log_softmax(-1)[:, unused].max() < -math.log(codec.vocab_size) + 0.1


def test_adapters_are_written_by_themselves_too(tmp_path: Path) -> None:
    assert sft(settings(tmp_path, lora_rank=2, steps=2))
    model, adapter = tmp_path / "run" / "model", tmp_path / "run" / "adapter"
    codec = Codec(adapter)
    base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    base.resize_token_embeddings(merged.config.vocab_size)
    written = load_file(adapter / "adapter_model.safetensors")
    assert {value.dtype for value in written.values()} == {torch.float32}
    assert sum(value.numel() for value in written.values()) < 0.5 * base.num_parameters()
    ids = torch.tensor([codec.prompt(CHAT) + list(codec.tag_ids)])
    with torch.no_grad():
        expected = merged(input_ids=ids).logits[0, :, : codec.vocab_size]
        adapted = PeftModel.from_pretrained(base, adapter)(input_ids=ids).logits[0, :, : codec.vocab_size]
    torch.testing.assert_close(adapted, expected, rtol=0, atol=0.02)


@pytest.mark.timeout(900)
def test_two_processes_train_as_one_and_survive_a_kill(tmp_path: Path) -> None:
    shared = {"steps": 6, "batch": 4, "save_every": 2}
    assert sft(settings(tmp_path, **shared))
    out = tmp_path / "two"
    flags = ["--model", tmp_path / "base", "--data", tmp_path / "data.jsonl", "--out", out, "--steps", 6]
    flags += ["--batch", 4, "--save-every", 2, "--row-tokens", 512, "--lr", 3e-3]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def run(*program: str) -> subprocess.CompletedProcess[str]:
        command = [*start, *program, *map(str, flags)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    killed = run(str(KILLED_SFT))
    assert killed.returncode and "SIGKILL" in killed.stderr, killed.stderr
    before = curve(out)
    assert [line["step"] for line in before] == [1, 2, 3, 4]
    assert (out / "checkpoint.partial").is_file()
    resumed = run("-m", "pasta_async.training.sft")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("the model is in") == 1
    after = curve(out)
    assert [line["step"] for line in after] == [1, 2, 3, 4, 5, 6]
    assert after[:4] == before  # 3 and 4 were computed twice
    for ours, alone in zip(after, curve(tmp_path / "run"), strict=True):
        assert ours == pytest.approx(alone, rel=1e-4)
    whole, two = (load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "run", out))
    for name, value in whole.items():
        torch.testing.assert_close(value, two[name], atol=2e-3, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_train_little_and_are_merged(tied: bool, tmp_path: Path) -> None:
    lora = {"lora_rank": 2, "steps": 6, "batch": 5, "lr": 2e-2, "tag_rate": 1, "recompute": tied}
    base_folder(tmp_path / "base", tie_word_embeddings=tied)
    data_file(tmp_path / "data.jsonl")
    with interrupted(3):
        assert not sft(settings(tmp_path, **lora))
    assert sft(settings(tmp_path, **lora))
    losses = [line["loss"] for line in curve(tmp_path / "run")]
    assert losses[-1] < losses[0]
    before = load_file(tmp_path / "base" / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        if name.endswith("proj.weight"):
            assert int(torch.linalg.matrix_rank(new - old, atol=1e-4)) in (1, 2), name
        else:
            assert torch.equal(new[: len(old)], old), name
    codec = Codec(tmp_path / "run" / "model")
    rows = after["model.embed_tokens.weight"][list(codec.tag_ids)]
    assert (rows != before["model.embed_tokens.weight"].mean(0)).all()


@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_is_trained_on(tied: bool, tmp_path: Path) -> None:
    run = adapter_run(tmp_path, tied=tied)
    data_file(tmp_path / "data.jsonl")
    more = settings(tmp_path, model=run.adapter, out=tmp_path / "more", steps=1, lr=1e-9)
    assert sft(more)
    before, after = (
        load_file(folder / "adapter_model.safetensors") for folder in (run.adapter, more.out / "adapter")
    )
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=1e-5)
        assert not torch.equal(after[name], value), name
    merged, whole = (load_file(folder / "model.safetensors") for folder in (run.model, more.out / "model"))
    for name, value in merged.items():
        torch.testing.assert_close(whole[name], value, atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidRequestError, match="lora-rank"):
        sft(settings(tmp_path, model=run.adapter, lora_rank=3))
    with pytest.raises(InvalidRequestError, match="lora-alpha"):
        sft(settings(tmp_path, model=run.adapter, lora_alpha=3))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_half_precision_computes_with_float32_weights(kind: str, tmp_path: Path) -> None:
    """Qwen3 scales queries and keys by float32 weights, so their format is another one than the values'."""
    sft(settings(tmp_path, kind=kind, steps=2, recompute=True, dtype="bfloat16"))
    sft(settings(tmp_path, steps=2, out=tmp_path / "full"))
    half, full = curve(tmp_path / "run"), curve(tmp_path / "full")
    assert half != full
    assert half[1]["loss"] == pytest.approx(full[1]["loss"], rel=0.02)
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")["lm_head.weight"]
    assert not torch.equal(weights, weights.bfloat16().float())


def test_what_does_not_fit_is_refused_before_the_first_update(tmp_path: Path) -> None:
    settings(tmp_path)

    def refused(reason: str | None, error: type[Exception] = InvalidRequestError, **changes: Any) -> None:
        with pytest.raises(error, match=reason):
            sft(settings(tmp_path, **changes))
        assert not (tmp_path / "run" / "metrics.jsonl").exists()

    refused("--drop-long", row_tokens=64)
    refused("--tag-rate", tag_rate=3)
    refused("nowhere", UnsupportedModelError, model=tmp_path / "nowhere")
    refused(r"nowhere\.jsonl", data=[tmp_path / "nowhere.jsonl"])
    (tmp_path / "strict.jinja").write_text("{{ raise_exception('no system') }}")
    refused("no system", chat_template=tmp_path / "strict.jinja")
    (tmp_path / "empty.jsonl").write_text("\n")
    refused(None, data=[tmp_path / "empty.jsonl"])
    broken = {"id": "odd", "messages": CHAT, "written": "one <sync/> two"}
    (tmp_path / "broken.jsonl").write_text(json.dumps(broken))
    refused("odd: .*sync-idle", data=[tmp_path / "broken.jsonl"])


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        sft(settings(tmp_path, lr=1e30))
