"""Whole recipes, from nothing to the report: everything is connected, and goes on after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import local_models
import pytest
from annotator_server import running_annotator
from judge_server import judging

from pasta_async.training.corpus import plain_record, write_records
from pasta_async.training.preference import read_samples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(1200)
"""A dozen processes that import torch, on a machine that may be busy."""

MEASURED = ["evaluation/stage1/noisy", "evaluation/round1/lambda4"]


def set_each(*values: str) -> Sequence[str]:
    return [word for value in values for word in ("--set", value)]


def run(*arguments: str) -> subprocess.Popen[bytes]:
    """In a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "pasta_async.training.run", *arguments]
    return subprocess.Popen(command, start_new_session=True)


def state(out: Path, step: str) -> dict[str, Any]:
    return json.loads((out / f"steps/{step}.json").read_text())


def test_smoke_runs_to_its_report_and_survives_a_kill(tmp_path: Path) -> None:
    """The run and its step are killed in the middle of stage 1; then the same command goes on."""
    saving = set_each("stage2.rounds=1", "stage1.variants.noisy.train={epochs=3, save_every=1}")
    only = [word for name in MEASURED for word in ("--only", name)]
    command = ["smoke", "--out", str(tmp_path), *only, *saving]
    first = run(*command)
    while not any((tmp_path / "stage1/noisy/checkpoints").glob("step-???????")):
        assert first.poll() is None
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = (tmp_path / "steps/stage1/baseline.json").read_bytes()
    assert not state(tmp_path, "stage1/noisy")["finished"]

    assert run(*command).wait() == 0
    assert (tmp_path / "steps/stage1/baseline.json").read_bytes() == before
    for name in MEASURED:
        assert state(tmp_path, name)["finished"]
        assert json.loads((tmp_path / name / "result.json").read_text())["all"]["prompts"] == 5
    report = (tmp_path / "report/tables.md").read_text()
    assert "| stage 1: noisy |" in report
    assert "| round 1, λ = 4 |" in report


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
    training = ("row_tokens=512", "dtype='auto'", "attention='auto'", "recompute=false", "threads=1")
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
        only = ["--only", "evaluation/round2/lambdainf"]
        assert run("llama-8b", "--out", str(out), *only, *set_each(*values)).wait() == 0
    assert annotator.prompts().total() == 8
    samples = [*read_samples(out / "samples/round2/lambdainf/samples.jsonl")]
    assert [len(prompt.samples) for prompt in samples] == [4] * 4
    first = read_samples(out / "samples/round1/samples.jsonl")
    assert not {prompt.id for prompt in samples} & {prompt.id for prompt in first}
    baseline, result = (
        json.loads((out / f"evaluation/{name}/result.json").read_text())
        for name in ("stage1/baseline", "round2/lambdainf")
    )
    assert baseline["all"]["score"]["value"] == 50
    assert result["all"]["prompts"] == 2
    assert result["judge"] == judge
    assert (out / "report/frontier.png").exists()
