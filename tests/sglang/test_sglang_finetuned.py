"""What the trainer exports is served by SGLang, and writes what it writes on the embedded engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finetune_folders import base_folder, data_file
from real_server import require_sglang, running_server

import pasta_async
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.training.finetune import FinetuneSettings, finetune

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
async def test_a_finetuned_model_is_served(tmp_path: Path) -> None:
    require_sglang()
    base_folder(tmp_path / "base", "qwen2", hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    values = {"model": tmp_path / "base", "data": [data_file(tmp_path / "data.jsonl")], "out": tmp_path}
    values |= {"batch": 5, "row_tokens": 512, "steps": 60, "lr": 1e-2, "warmup": 5, "track": "none"}
    assert finetune(FinetuneSettings.model_validate({**values, "export_dtype": "float32", "threads": 1}))
    model = tmp_path / "model"
    local = LocalBackend(model, device="cpu", dtype="float32")
    with running_server(model, tmp_path / "log") as (url, _):
        served = SGLangBackend(url)
        try:
            sampling = pasta_async.Sampling(max_tokens=200)
            async with pasta_async.Client(local) as one, pasta_async.Client(served) as other:
                expected = await one.generate("Tell 0", sampling=sampling)
                answer = await other.generate("Tell 0", sampling=sampling)
        finally:
            await served.aclose()
            await local.aclose()
    assert answer.document.format() == expected.document.format()
    assert expected.document.promises  # it learned to promise
