"""SGLang serves the models of both stages, with the answers of the embedded engine."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from finetune_folders import base_folder, data_file
from preference_files import prompt_of, write_files
from real_server import require_sglang, running_server
from transformers import AutoModelForCausalLM

import pasta_async
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.protocol import Backend, DecodeRequest
from pasta_async.training.data.corpus import read_records, write_records
from pasta_async.training.model import ModelCodec
from pasta_async.training.prefer import PreferSettings, prefer
from pasta_async.training.sft import SftSettings, sft

COMMON: dict[str, Any] = {"threads": 1, "row_tokens": 1024}
CHAT = [{"role": "user", "content": "Tell 0"}]


def trained(folder: Path) -> tuple[Path, Path]:
    """The models of stage 1 and of stage 2."""
    base_folder(folder / "base", "qwen2", hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    data = folder / "data.jsonl"
    # One prompt has all these answers, so which of them is the likeliest is chance: each has a promise.
    records = [record for record in read_records(data_file(data)) if "<promise" in record.written]
    write_records(data, records)
    first = {"model": folder / "base", "data": [data], "out": folder / "one"}
    first |= {"batch": 5, "steps": 60, "lr": 1e-2, "warmup": 5}
    assert sft(SftSettings.model_validate({**COMMON, **first}))
    model = folder / "one" / "model"
    answers = (
        'Less: <promise topic="rest" tokens="10"/><async>the rest</async> of one.',
        "One outcome, no promise.",
    )
    prompts = [prompt_of(ModelCodec(model), name, answers) for name in ("0", "1")]
    write_files(folder, prompts, {name: [(2.0, 0.5), (1.0, 0.5)] for name in ("0", "1")})
    second = {"model": model, "out": folder / "two", "quality_weight": 1, "steps": 8, "lr": 1e-3}
    second |= {"samples": folder / "samples.jsonl", "scores": folder / "scores.jsonl"}
    assert prefer(PreferSettings.model_validate({**COMMON, **second}))
    return model, folder / "two" / "model"


async def written(backend: Backend) -> str:
    async with pasta_async.Client(backend) as client:
        answer = await client.generate("Tell 0", sampling=pasta_async.Sampling(max_tokens=400))
        return answer.document.format()


async def in_one_thread(backend: Backend, ids: list[int]) -> list[int]:
    request = DecodeRequest("a", 0, tuple(ids), 24, pasta_async.Sampling())
    return [token async for piece in backend.decode(request) for token in piece.ids]


def by_transformers(model: Path, ids: list[int]) -> list[int]:
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompt = torch.tensor([ids])
    out = loaded.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False, pad_token_id=0
    )
    return out[0, len(ids) :].tolist()


def load_weights(url: str, model: Path) -> None:
    done = httpx.post(f"{url}/update_weights_from_disk", json={"model_path": str(model)}, timeout=120)
    assert done.raise_for_status().json()["success"]


@pytest.mark.timeout(900)
async def test_models_of_both_stages_are_served(tmp_path: Path) -> None:
    require_sglang()
    models = trained(tmp_path)
    prompt = ModelCodec(models[0]).prompt(CHAT)
    answers: list[str] = []
    with running_server(models[0], tmp_path / "log") as (url, _):
        served = SGLangBackend(url)
        try:
            for model in models:  # one server, which loads the weights of the other, is enough
                await asyncio.to_thread(load_weights, url, model)
                local = LocalBackend(model, device="cpu", dtype="float32")
                try:
                    answers.append(await written(local))
                    assert await written(served) == answers[-1]
                    tokens = await in_one_thread(local, prompt)
                    assert tokens == by_transformers(model, prompt) == await in_one_thread(served, prompt)
                finally:
                    await local.aclose()
        finally:
            await served.aclose()
    assert "<promise" in answers[0]  # it learned to promise
    first, second = ((model / "model.safetensors").read_bytes() for model in models)
    assert first != second  # and something else in stage 2
