"""What int8 costs in precision: how likely the embedded engine finds given text, by number format.

    python tests/backends/measure_precision.py MODEL --documents annotated.jsonl [--sample 200] [--tokens 100]

Each text is decoded under force behind its first 30 tokens, all texts at once, in each format of the same
weights (a GGUF file or a checkpoint folder); the others are compared with float32. Intervals are over texts.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pasta_async.backends.local import LocalBackend
from pasta_async.evals.documents import read_documents
from pasta_async.evals.forcing import FORCED_SAMPLING
from pasta_async.evals.records import environment, markdown_table
from pasta_async.protocol import DecodeRequest
from pasta_async.training.statistics import estimate, format_estimate

_GIVEN = 30
"""Tokens of each text that are its prompt."""

Choices = list[tuple[float, int]]
"""Of each token: its bits, and the likeliest one in its place."""


async def _decode(backend: LocalBackend, ids: Sequence[int], number: int) -> Choices:
    """Decode one text under force."""
    found: Choices = []

    def look(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        token = ids[_GIVEN + len(generated)]
        bits = -float(logits.log_softmax(-1)[token]) / math.log(2)
        found.append((bits, int(logits.argmax())))
        logits[token] = 1e6
        return logits

    request = DecodeRequest(
        answer=str(number),
        thread=0,
        ids=tuple(ids[:_GIVEN]),
        max_tokens=len(ids) - _GIVEN,
        sampling=FORCED_SAMPLING,
        extra={"logits_processor": look},
    )
    async with aclosing(backend.decode(request)) as pieces:
        async for _ in pieces:
            pass
    return found


async def _measure(settings: argparse.Namespace, dtype: str) -> list[Choices]:
    """Decode all texts in one number format."""
    documents = read_documents(settings.documents, settings.sample)
    backend = LocalBackend(settings.model, dtype=dtype)
    try:
        await backend.connect()
        texts = [await backend.encode(document.text) for document in documents.values()]
        length = _GIVEN + settings.tokens
        long = [text[:length] for text in texts if len(text) >= length]
        return await asyncio.gather(*(_decode(backend, text, i) for i, text in enumerate(long)))
    finally:
        await backend.aclose()


def _row(dtype: str, found: Sequence[Choices], exact: Sequence[Choices]) -> dict[str, Any]:
    bits, exact_bits = ([fmean(one for one, _ in text) for text in texts] for texts in (found, exact))
    more = [ours - theirs for ours, theirs in zip(bits, exact_bits, strict=True)]
    same = [
        fmean(ours[1] == theirs[1] for ours, theirs in zip(text, reference, strict=True))
        for text, reference in zip(found, exact, strict=True)
    ]
    return {
        "": dtype,
        "texts": len(found),
        "tokens": sum(map(len, found)),
        "bits a token": f"{fmean(bits):.4f}",
        "more than float32": format_estimate(estimate(more, "arithmetic"), ".4f"),
        "same choice as float32": format_estimate(estimate(same, "arithmetic"), ".3f"),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100)
    settings = parser.parse_args()
    print(environment())
    found = {dtype: asyncio.run(_measure(settings, dtype)) for dtype in ("float32", "bfloat16", "int8")}
    print(markdown_table([_row(dtype, texts, found["float32"]) for dtype, texts in found.items()]))


if __name__ == "__main__":
    main()
