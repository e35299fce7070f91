"""What int8 costs a real model: bits a token of English text, decoded under force, beside float32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pasta_smol import require_pasta_smol

from pasta_async.backends.local.engine import Engine, EngineOptions
from pasta_async.backends.local.opening import open_checkpoint
from pasta_async.backends.local.sampler import TokenSampler
from pasta_async.backends.local.scheduler import Job
from pasta_async.options import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = Path(__file__).parents[2] / "docs" / "interpreter.md"
PROMPT, TOKENS, TEXTS = 16, 64, 24


class Forced(TokenSampler):
    """Takes given tokens, and adds up how dear they are."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(Sampling(), 0, self._force)
        self._tokens, self.bits = tokens, 0.0

    def _force(self, generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        token = self._tokens[len(generated)]
        self.bits -= logits.log_softmax(-1)[token].item() / math.log(2)
        return torch.full_like(logits, -math.inf).index_fill_(0, torch.tensor([token]), 0.0)


def bits_per_token(model: Path, dtype: str, ids: Sequence[int]) -> float:
    """Of 24 stretches of 64 tokens, decoded at once."""
    engine = Engine(model, EngineOptions(device="cpu", slots=4096, dtype=dtype))  # pyright: ignore[reportArgumentType]
    samplers: list[Forced] = []
    for start in range(0, TEXTS * (PROMPT + TOKENS), PROMPT + TOKENS):
        prompt, rest = ids[start : start + PROMPT], ids[start + PROMPT : start + PROMPT + TOKENS]
        samplers.append(Forced(rest))
        engine.add(Job(start, prompt, TOKENS, samplers[-1], ()))
    while engine.step() is not None:
        pass
    return sum(sampler.bits for sampler in samplers) / (TEXTS * TOKENS)


def test_int8_costs_a_real_model_hardly_a_bit() -> None:
    """Within 1% of float32 on 20,000 tokens (docs/backends.md); so few as here say that less exactly."""
    folder = require_pasta_smol()
    ids = open_checkpoint(folder).codec().encode(TEXT.read_text(encoding="utf-8"))
    exact, rounded = (bits_per_token(folder, dtype, ids) for dtype in ("float32", "int8"))
    assert rounded < 1.02 * exact
