"""SGLang serves a finetuned model, with the answers of the embedded engine."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_folders import base_folder, data_file
from real_server import require_sglang, running_server
from transformers import AutoModelForCausalLM

import pasta_async
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.protocol import Backend, DecodeRequest
from pasta_async.training.data.corpus import read_records, write_records
from pasta_async.training.model import ModelCodec
from pasta_async.training.sft import SftSettings, sft

COMMON: dict[str, Any] = {"threads": 1, "row_tokens": 1024}
CHAT = [{"role": "user", "content": "Tell 0"}]


def trained(folder: Path) -> Path:
    """A model of stage 1."""
    base_folder(folder / "base", "qwen2", hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    data = folder / "data.jsonl"
    # One prompt has all these answers, so which of them is the likeliest is chance: each has a promise.
    records = [record for record in read_records(data_file(data)) if "<promise" in record.written]
    write_records(data, records)
    first = {"model": folder / "base", "data": [data], "out": folder / "one"}
    first |= {"batch": 5, "steps": 60, "lr": 1e-2, "warmup": 5}
    assert sft(SftSettings.model_validate({**COMMON, **first}))
    return folder / "one" / "model"


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


@pytest.mark.timeout(900)
async def test_a_finetuned_model_is_served(tmp_path: Path) -> None:
    require_sglang()
    model = trained(tmp_path)
    prompt = ModelCodec(model).prompt(CHAT)
    local = LocalBackend(model, device="cpu", dtype="float32")
    with running_server(model, tmp_path / "log") as (url, _):
        served = SGLangBackend(url)
        try:
            answer = await written(local)
            assert "<promise" in answer  # it learned to promise
            assert await written(served) == answer
            tokens = await in_one_thread(local, prompt)
            assert tokens == by_transformers(model, prompt) == await in_one_thread(served, prompt)
        finally:
            await local.aclose()
            await served.aclose()
