"""pasta-smol as `pasta-async export` writes it: SGLang answers real prompts as the embedded engine does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from local_models import unconstrained
from pasta_smol import SMOL_PROMPTS, answered, export_smol
from real_server import require_sglang, running_server

from pasta_async import Backend, Client, Limits
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend

SMALL_CACHE = ("--max-total-tokens", "16384")


async def penalised(backend: Backend, count: int) -> list[str]:
    """Greedy plain answers under the model's own repetition penalty, all under way at the same time."""
    async with Client(backend, limits=Limits(timeout=None)) as client:
        ask = (client.generate(prompt, max_tokens=64, baseline=True) for prompt in SMOL_PROMPTS[:count])
        return [answer.text for answer in await asyncio.gather(*ask)]


@pytest.mark.timeout(1200)
async def test_the_export_answers_on_sglang_as_the_adapter_does_here(tmp_path: Path) -> None:
    require_sglang()
    out = export_smol(tmp_path / "pasta-smol")
    local = LocalBackend("pasta-smol", device="cpu", dtype="float32")
    try:
        expected = await answered(unconstrained(local))  # as SGLang is
    finally:
        await local.aclose()
    with running_server(out, tmp_path / "log", *SMALL_CACHE) as (url, _):
        served = SGLangBackend(url)
        try:
            found = await answered(served)
            alone, *_ = await penalised(served, 1)
            beside, *_ = await penalised(served, 4)
        finally:
            await served.aclose()
    for prompt, ours, theirs in zip(SMOL_PROMPTS, expected, found, strict=True):
        assert theirs.document.format() == ours.document.format(), prompt
    assert beside == alone  # the penalty counts every token, whoever is prefilled meanwhile
    assert all(answer.text.strip() for answer in expected)
    assert any(len(answer.threads) > 1 for answer in expected)  # forks are compared, too
