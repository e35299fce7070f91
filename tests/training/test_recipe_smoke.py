"""Whole recipes, from nothing to the report: everything is connected."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import local_models
import pytest
import torch
from annotator_server import running_annotator
from command_runs import run as run_command
from judge_server import judging
from steps_here import StepHere

from pasta_async.backends.local.opening import open_checkpoint
from pasta_async.training import run as running
from pasta_async.training.corpus import plain_record, read_records, write_records
from pasta_async.training.preference import read_samples

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]
"""A dozen commands each, on a machine that may be busy."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run in this process; other tests run them in their own."""
    own = SimpleNamespace(Popen=StepHere, DEVNULL=subprocess.DEVNULL, run=StepHere)
    monkeypatch.setattr(running, "subprocess", own)


def run(recipe: str, out: Path, only: Sequence[str] = (), values: Sequence[str] = ()) -> None:
    names = [word for name in only for word in ("--only", name)]
    settings = [word for value in values for word in ("--set", value)]
    assert not run_command(running.main, recipe, "--out", out, *names, *settings)


def measured(out: Path, model: str) -> dict[str, Any]:
    return json.loads((out / f"evaluation/{model}/result.json").read_text())


# pasta-tiny


def test_smoke_runs_to_its_report_and_does_nothing_twice(tmp_path: Path) -> None:
    values = ["stage2.rounds=1", "base.steps=10", "data.synthetic.count=16", "stage2.sample.max_tokens=40"]
    values += ["evaluation.max_tokens=30"]
    models = ["stage1/noisy", "round1/lambda4"]
    only = [f"evaluation/{model}" for model in models]
    run("smoke", tmp_path, models[:1], values)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "steps").rglob("*.json")}
    run("smoke", tmp_path, only, values)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    for model in models:
        assert measured(tmp_path, model)["all"]["prompts"] == 5
    report = (tmp_path / "report/report.md").read_text()
    assert "| stage 1: noisy |" in report
    assert "| round 1, λ = 4 |" in report


# pasta-smol


def babbler(folder: Path) -> Path:
    """A small chat model that draws words, lines and ends of answers, whatever it is asked."""
    tokenizer: Any = local_models.byte_level(tags=False)
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = local_models.model(vocabulary=len(tokenizer), tie_word_embeddings=False, **shape)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[:, 0] = 4.0  # what all states share decides
        model.lm_head.weight[:, 0] = -3.0
        for text, weight in (("The causes were many. It was one outcome.<|im_end|>", 0.0), ("\n", 0.3)):
            model.lm_head.weight[tokenizer.encode(text), 0] = weight
    return local_models.save(folder, model, tokenizer)


def test_the_recipe_of_pasta_smol_runs_with_a_smaller_model(tmp_path: Path) -> None:
    """The same file; what is set is where things are, and how much of them there is."""
    base, prompts, out = babbler(tmp_path / "base"), tmp_path / "prompts.jsonl", tmp_path / "run"
    prompts.write_text('{"instruction": "What were the causes?"}\n{"instruction": "And the outcome?"}\n')
    values = [
        *(f"base='{base}'", "data.prompts.also=[]", f"data.prompts.against=['{prompts}']"),
        *("data.prompts.count=24", "data.answers.max_tokens=60", "data.answers.least=1"),
        *("stage1.train.steps=1", "stage1.variants.likelihood.annotate={least=1, tau=9, sync_tau=9}"),
        *("stage2.rounds=1", "stage2.quality_weights=[4]", "stage2.prompts=4", "stage2.sample.n=4"),
        *("stage2.sample.max_tokens=60", "stage2.train.batch=4", "stage2.train.epochs=1"),
        *(f"evaluation.prompts='{prompts}'", "evaluation.max_tokens=40"),
    ]
    run("pasta-smol", out, (), values)
    answers = [*read_records(out / "data/plain/records.jsonl")]
    annotated = [*read_records(out / "data/likelihood/annotated.jsonl")]
    assert [one.document.text for one in annotated] == [one.document.text for one in answers]
    assert {one.annotator for one in annotated} == {"likelihood:base"}
    assert any(one.document.promises for one in annotated)
    fresh = {prompt.id for prompt in read_samples(out / "samples/round1/samples.jsonl")}
    assert len(fresh) == 4
    assert not fresh & {one.id for one in read_records(out / "data/prompts/records.jsonl")}
    assert measured(out, "round1/lambda4")["judge"] == "likelihood"
    for model in ("stage1/likelihood", "round1/lambda4"):
        shipped = open_checkpoint(out / "shipped" / model, base)
        assert shipped.codec().tags


# llama-8b


def llama(folder: Path) -> Path:
    """A small random model with Llama 3's special tokens, and no chat template."""
    tokenizer: Any = local_models.byte_level(tags=False)
    names = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id")
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    tokenizer.bos_token, tokenizer.eos_token = "<|begin_of_text|>", "<|end_of_text|>"
    tokenizer.chat_template = None
    model = local_models.model(vocabulary=len(tokenizer), max_position_embeddings=2048)
    return local_models.save(folder, model, tokenizer)


def opinion(first: str, second: str) -> float:
    """Of two different texts, a preference that is as good as drawn."""
    return hashlib.sha256(f"{first}/{second}".encode()).digest()[0] / 255


def test_the_recipe_of_an_8b_model_runs_with_a_small_one(tmp_path: Path) -> None:
    """The same file; what is set is where things are, how much of them there is, and that this is a CPU."""
    text = "The causes were many, and more.\n\nThe outcome of it all was one."
    data, prompts, out = tmp_path / "data.jsonl", tmp_path / "prompts.jsonl", tmp_path / "run"
    ask = [[{"role": "user", "content": f"Tell {number}"}] for number in range(16)]
    write_records(data, [plain_record(messages, text) for messages in ask])
    prompts.write_text('{"instruction": "What were the causes?"}\n{"instruction": "And the outcome?"}\n')
    training = ("row_tokens=512", "dtype='auto'", "recompute=false", "threads=1")
    short = {"stage1.train": ["epochs=20", "lr=3e-3"], "stage2.train": ["lr=1e-4"]}
    with running_annotator() as annotator, judging(opinion) as (_, judge):
        values = [
            *("processes=1", "serving=", "stage2.prompts=4", "stage2.sample.n=4"),
            f"base='{llama(tmp_path / 'base')}'",
            *(f"data.source.data='{data}'", f"data.source.against=['{prompts}']", "data.source.limit=8"),
            *(f"data.annotator.base_url='{annotator.url}'", "data.annotator.ask_from=0"),
            *(f"{table}.{value}" for table, own in short.items() for value in (*training, *own)),
            *("stage2.sample.max_tokens=200", "evaluation.max_tokens=200"),
            *(f"stage2.score.judge='{judge}'", f"evaluation.judge='{judge}'"),
            f"evaluation.prompts='{prompts}'",
        ]
        run("llama-8b", out, ["evaluation/round2/lambdainf"], values)
    assert annotator.prompts().total() == 8
    samples = [*read_samples(out / "samples/round2/lambdainf/samples.jsonl")]
    assert [len(prompt.samples) for prompt in samples] == [4] * 4
    first = read_samples(out / "samples/round1/samples.jsonl")
    assert not {prompt.id for prompt in samples} & {prompt.id for prompt in first}
    assert measured(out, "stage1/baseline")["all"]["score"]["value"] == 50
    result = measured(out, "round2/lambdainf")
    assert result["all"]["prompts"] == 2
    assert result["judge"] == judge
    assert (out / "report/frontier.png").exists()
