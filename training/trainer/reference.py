"""Log-probabilities under the model that training starts from, for losses that compare with it."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import gc
import json
from itertools import islice
from typing import TYPE_CHECKING

import torch

from pasta_async.jobs import progress
from pasta_async.training.trainer.model import shard
from pasta_async.training.trainer.rows import deal_rows, log_probabilities, pack_examples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pasta_async.training.trainer.model import BaseModel
    from pasta_async.training.trainer.processes import Processes
    from pasta_async.training.trainer.task import Task

__all__ = ["reference_scores"]

_TOGETHER = 256
"""Examples of each process that are dealt to rows at once."""


def reference_scores(
    file: Path,
    base: BaseModel,
    task: Task,
    sizes: Mapping[int, int],
    *,
    dtype: torch.dtype,
    row_tokens: int,
    pad: int,
    processes: Processes,
) -> dict[int, tuple[float, ...]]:
    """The summed log-probability of each tree of each example under the base model, by its number.

    They are computed once in a run, and kept in a file. Every process must call it.

    Args:
        file: Where they are kept, under the fingerprint of what they are of.
        base: The model at the start.
        task: Whose examples.
        sizes: Tokens of each example that counts, by its number.
        dtype: Of the computation.
        row_tokens: Most tokens of a row.
        pad: Id that fills a row.
        processes: The run's.
    """
    files = sorted(base.folder.glob("*.safetensors"))  # tells weights from others in that folder
    stats = [(one.name, one.stat()) for one in files]
    key: list[object] = [task.fingerprint, *([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats)]
    known = processes.share(_read(file, key) if processes.first else {})
    if set(known) == set(sizes):
        return known
    model = (base.loaded() if processes.first else base.empty()).eval()
    shard(model, processes, dtype, share=True)
    numbers, scores = list(sizes), dict[int, tuple[float, ...]]()
    with progress(len(numbers), "reference", shown=processes.first) as advance, torch.no_grad():
        for start in range(0, len(numbers), _TOGETHER * processes.world):
            part = numbers[start : start + _TOGETHER * processes.world]
            dealt = deal_rows([sizes[number] for number in part], row_tokens, processes.world)
            for row in dealt[processes.rank :: processes.world]:
                examples = [task.example(part[place]) for place in row]
                # A row of none is padding, which is computed, since the other processes wait for it.
                packed = pack_examples(examples, row_tokens, pad, processes.device)
                found = iter(log_probabilities(model, packed).tolist())
                for place, example in zip(row, examples, strict=True):
                    scores[part[place]] = tuple(islice(found, len(example.trees)))
            advance(len(part))
    del model
    gc.collect()  # a sharded model refers to itself
    gathered = {number: score for found in processes.gather(scores) for number, score in found.items()}
    if processes.first:
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text(json.dumps({"of": key, "scores": gathered}) + "\n", encoding="utf-8")
        partial.replace(file)
    return gathered


def _read(file: Path, key: list[object]) -> dict[int, tuple[float, ...]]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if kept["of"] != key:
        return {}
    return {int(number): tuple(scores) for number, scores in kept["scores"].items()}
