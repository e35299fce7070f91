"""Whole answers of the shipped model on the embedded engine: what is shared, and that timing changes none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import pasta_async
from pasta_async import Backend
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.batch import Floats
from pasta_async.lang import STYLE_CODES, TAG_TOKENS, Code
from pasta_async.protocol import DecodeRequest
from tests.helpers import local_models
from tests.helpers.local_models import Unconstrained
from tests.pasta_tiny import examples

FAMILIES = ("describe", "totals", "fair")


def prompt(family: str) -> str:
    return examples(family)[0].prompt


@pytest.mark.parametrize("family", FAMILIES)
async def test_one_after_another_gives_the_same_text(local: LocalBackend, family: str) -> None:
    async with pasta_async.Client(local) as client:
        together = await client.generate(prompt(family))
        apart = await client.generate(prompt(family), parallel="never")
    assert together.document.format() == apart.document.format()
    assert len(together.threads) > 1


async def test_a_repetition_penalty_spares_tags_and_ends(local: LocalBackend) -> None:
    model = await local.connect()
    words = model.tokenizer.encode("Compare")
    seen: list[Floats] = []

    def look(_: Sequence[int], logits: Floats) -> Floats:
        seen.append(logits.copy())
        return logits

    for penalty in (1, 1.5):
        sampling = pasta_async.Sampling(repetition_penalty=penalty)
        ids = (*words, *(model.tags or ()), *model.end_ids)
        request = DecodeRequest("a", 0, ids, 1, sampling, extra={"logits_processor": look})
        async for _ in local.decode(request):
            pass
    changed = ~np.isclose(*seen, rtol=0.1)
    assert [token for token in range(len(changed)) if changed[token]] == sorted({*words})


async def test_noise_is_well_formed(tmp_path: Path) -> None:
    local_models.save(tmp_path, local_models.model(), local_models.byte_level())

    async def complaints(backend: Backend) -> set[Code]:
        async with pasta_async.Client(backend) as client:
            asked = (
                client.generate("Well?", temperature=2.0, seed=seed, max_tokens=200) for seed in range(12)
            )
            answers = await asyncio.gather(*asked)
        return {diagnostic.code for answer in answers for diagnostic in answer.diagnostics} - STYLE_CODES

    left_to_the_model = {Code.PROMISE_NESTED, Code.SYNC_NESTED, Code.TOKENS_BAD}
    assert await complaints(LocalBackend(tmp_path, device="cpu")) <= left_to_the_model
    assert await complaints(Unconstrained(LocalBackend(tmp_path, device="cpu"))) - left_to_the_model
    async with pasta_async.Client(LocalBackend(tmp_path, device="cpu")) as client:
        plain = await client.generate("Well?", baseline=True, temperature=2.0, seed=0, max_tokens=200)
    assert not plain.document.promises and not any(tag in plain.text for tag in TAG_TOKENS)


async def test_the_load_is_the_schedulers_own(local: LocalBackend) -> None:
    assert await local.load() is None
    async with pasta_async.Client(local) as client:
        await client.connect()
        idle = await local.load()
        assert idle is not None
        assert (idle.capacity, idle.running, idle.queued, idle.kv_use) == (256, 0, 0, 0)
        async with client.stream(prompt("fair"), parallel="never") as answer:
            await anext(answer.text_deltas())
            busy = await local.load()
        assert busy is not None
        assert (busy.running, busy.queued) == (1, 0) and busy.kv_use > 0
        await client.generate(prompt("fair"))
    done = await local.load()
    assert done is not None
    assert (done.running, done.kv_use) == (0, 0)
