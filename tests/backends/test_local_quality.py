"""Real models: the price of int8 in bits a token of English text, and the lists of an untrained one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pasta_async import Client
from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.backends.local.batch import Floats
from pasta_async.backends.local.pull import base_path
from pasta_async.backends.local.sampler import TokenSampler
from pasta_async.backends.local.scheduler import Job
from pasta_async.options import Sampling
from tests.helpers.engine_jobs import open_engine, run
from tests.helpers.trained_models import require_model

DOC = Path(__file__).parents[2] / "docs" / "language.md"
PROMPT, TOKENS, TEXTS = 16, 64, 8


class Forced(TokenSampler):
    """Takes given tokens, and notes how dear they are and what it would have taken."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(Sampling(), 0, self._force)
        self._tokens, self.bits = tokens, 0.0
        self.choices: list[int] = []

    def _force(self, generated: Sequence[int], logits: Floats) -> Floats:
        token = self._tokens[len(generated)]
        self.choices.append(int(logits.argmax()))
        self.bits -= (logits[token] - np.logaddexp.reduce(logits)).item() / math.log(2)
        return np.where(np.arange(len(logits)) == token, 0.0, -np.inf)


def decoded(model: Path, dtype: str, ids: Sequence[int]) -> tuple[float, list[int]]:
    """Bits a token of stretches of 64 tokens, and the choices there."""
    engine = open_engine(model, slots=4096, dtype=dtype, max_running=TEXTS)  # pyright: ignore[reportArgumentType]
    samplers: list[Forced] = []
    jobs: list[Job] = []
    for start in range(0, TEXTS * (PROMPT + TOKENS), PROMPT + TOKENS):
        prompt, rest = ids[start : start + PROMPT], ids[start + PROMPT : start + PROMPT + TOKENS]
        samplers.append(Forced(rest))
        jobs.append(Job(start, prompt, TOKENS, samplers[-1], ()))
    run(engine, *jobs)
    bits = sum(sampler.bits for sampler in samplers) / (TEXTS * TOKENS)
    return bits, [choice for sampler in samplers for choice in sampler.choices]


@pytest.mark.timeout(400)
def test_int8_costs_a_real_model_hardly_a_bit() -> None:
    folder = require_model("pasta-smol")
    ids = open_checkpoint(folder).tokenizer().encode(DOC.read_text(encoding="utf-8"))
    (exact, choices), (rounded, others) = (decoded(folder, dtype, ids) for dtype in ("float32", "int8"))
    same = sum(a == b for a, b in zip(choices, others, strict=True)) / len(choices)
    assert rounded < 1.02 * exact
    assert same > 0.9


EXERCISES = "What are the best exercises for beginners?"


async def test_the_items_of_its_list_are_written_in_parallel() -> None:
    folder = require_model("pasta-smol")
    base = base_path(folder)
    assert base != folder
    async with Client(f"local:{base}") as client:
        outlined = await client.generate(EXERCISES, parallel="outline", max_tokens=200)
        plain = await client.generate(EXERCISES, max_tokens=120)
    main, first, *others = outlined.threads
    assert others
    assert first.text.strip() and others[0].text.strip()  # the last may stand behind the end
    assert outlined.critical_path < outlined.text_tokens
    before, topic, _ = main.text.partition(first.topic)
    assert plain.text.startswith(before + topic)
    assert first.text in plain.text  # its thread sees what it sees in a plain answer
