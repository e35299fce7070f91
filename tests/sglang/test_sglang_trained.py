"""Models as `pasta-async export` writes them: SGLang answers real prompts as the embedded engine does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from pasta_async import Backend, Client, Limits
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from tests.helpers.local_models import Unconstrained
from tests.helpers.real_server import require_sglang, running_server
from tests.helpers.trained_models import FEW, PROMPTS, answered, export_model

SMALL_CACHE = ("--max-total-tokens", "16384")


async def penalised(backend: Backend, prompts: Sequence[str]) -> list[str]:
    """Greedy plain answers under the model's own repetition penalty, all under way at the same time."""
    async with Client(backend, limits=Limits(timeout=None)) as client:
        ask = (client.generate(prompt, max_tokens=64, baseline=True) for prompt in prompts)
        return [answer.text for answer in await asyncio.gather(*ask)]


@pytest.mark.parametrize(
    "name",
    [
        "pasta-smol",
        pytest.param(
            "pasta-qwen",
            marks=pytest.mark.skipif(
                "PASTA_TEST_LONG" not in os.environ, reason="it takes nine minutes: PASTA_TEST_LONG=1 runs it"
            ),
        ),
    ],
)
@pytest.mark.timeout(1800)
async def test_the_export_answers_on_sglang_as_the_adapter_does_here(tmp_path: Path, name: str) -> None:
    require_sglang()
    prompts = PROMPTS if name == "pasta-qwen" else FEW
    out = export_model(name, tmp_path / name)
    async with aclosing(LocalBackend(name, device="cpu", dtype="float32")) as local:
        expected = await answered(Unconstrained(local), prompts)  # as SGLang is
    with running_server(out, tmp_path / "log", *SMALL_CACHE) as (url, _):
        async with aclosing(SGLangBackend(url)) as served:
            served_answers = await answered(served, prompts)
            alone, *_ = await penalised(served, PROMPTS[:1])
            beside, *_ = await penalised(served, PROMPTS[:4])
    for prompt, ours, theirs in zip(prompts, expected, served_answers, strict=True):
        assert theirs.document.format() == ours.document.format(), prompt
    assert beside == alone  # the penalty counts every token, whoever is prefilled meanwhile
    assert all(answer.text.strip() for answer in expected)
    assert any(len(answer.threads) > 1 for answer in expected)  # forks are compared, too
