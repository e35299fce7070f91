"""Sampled answers, as stage 2 reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pasta_async.training.samples import Plain, Sample, SampledPrompt


def sample(number: int, text: str, **changes: Any) -> Sample:
    """A plain answer that ended well; `changes` are fields of it that differ."""
    values: dict[str, Any] = {"number": number, "seed": number, "text": text, "written": text}
    values |= {"finish_reason": "stop", "well_formed": True, "exact": True}
    values |= {"tokens": 20, "text_tokens": 9, "critical_path": 10}
    return Sample.model_validate({**values, **changes})


def sampled_prompt(
    name: str, question: str, samples: Iterable[Sample], *, baseline: str = "plain", tokens: int = 10
) -> SampledPrompt:
    """A question with samples, and the baseline's answer with its number of tokens."""
    return SampledPrompt(
        id=name,
        messages=({"role": "user", "content": question},),
        samples=tuple(samples),
        baseline=Plain(text=baseline, tokens=tokens),
    )
