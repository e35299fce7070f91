"""Samples and scores as stage 2 reads them, made of annotated answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_async.lang import parse
from pasta_async.training.data.corpus import write_records
from pasta_async.training.samples import Sample, SampledPrompt, Score
from pasta_async.training.views import Codec, pack_views
from tests.helpers.samples import sample, sampled_prompt


def prompt_of(
    codec: Codec, name: str, answers: Sequence[str], changes: Mapping[int, dict[str, Any]] | None = None
) -> SampledPrompt:
    """A prompt with a sample of each answer, whose ids are those that the codec writes."""
    content = f"Tell {name}"
    samples: list[Sample] = []
    for number, written in enumerate(answers):
        document = parse(written)
        trie = pack_views(codec, codec.prompt([{"role": "user", "content": content}]), document)
        values: dict[str, Any] = {"written": written, "tokens": len(trie.targets)}
        values |= {"ids": trie.ids, "parents": trie.parents, "targets": trie.targets}
        samples.append(sample(number, document.text, **{**values, **(changes or {}).get(number, {})}))
    return sampled_prompt(name, content, samples)


def write_files(
    folder: Path, prompts: Sequence[SampledPrompt], values: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """`samples.jsonl` and `scores.jsonl`; the values are speed-up and quality, by prompt and number."""
    write_records(folder / "samples.jsonl", prompts)
    scores = [
        Score(id=name, number=number, speedup=speedup, quality=quality)
        for name, pairs in values.items()
        for number, (speedup, quality) in enumerate(pairs)
    ]
    write_records(folder / "scores.jsonl", scores)
