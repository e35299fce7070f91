"""Log-probabilities under the model that training starts from, for losses that compare with it."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

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

__all__ = ["Reference"]

_TOGETHER = 256
"""Examples of each process that are dealt to rows at once."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Computes these log-probabilities once in a run, and keeps them in a file.

    Args:
        file: Where they are kept, under the fingerprint of what they are of.
        base: The model at the start.
        dtype: Of the computation.
        row_tokens: Most tokens of a row.
        pad: Id that fills a row.
        processes: The run's.
    """

    file: Path
    base: BaseModel
    dtype: torch.dtype
    row_tokens: int
    pad: int
    processes: Processes

    def scores(self, task: Task, sizes: Mapping[int, int]) -> dict[int, tuple[float, ...]]:
        """The summed log-probability of each tree of each example. Every process must call it.

        Args:
            task: Whose examples.
            sizes: Tokens of each example that counts, by its number.
        """
        files = sorted(self.base.folder.glob("*.safetensors"))  # tells weights from others in that folder
        key: list[object] = [
            task.fingerprint,
            *([one.name, one.stat().st_size, one.stat().st_mtime_ns] for one in files),
        ]
        known = self.processes.share(self._read(key) if self.processes.first else {})
        if set(known) != set(sizes):
            known = self._compute(task, sizes)
            gc.collect()  # a sharded model refers to itself
            if self.processes.first:
                partial = self.file.with_name(f"{self.file.name}.partial")
                partial.write_text(json.dumps({"of": key, "scores": known}) + "\n", encoding="utf-8")
                partial.replace(self.file)
        return known

    def _read(self, key: list[object]) -> dict[int, tuple[float, ...]]:
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if kept["of"] != key:
            return {}
        return {int(number): tuple(scores) for number, scores in kept["scores"].items()}

    def _compute(self, task: Task, sizes: Mapping[int, int]) -> dict[int, tuple[float, ...]]:
        processes = self.processes
        model = (self.base.loaded() if processes.first else self.base.empty()).eval()
        shard(model, processes, self.dtype, share=True)
        numbers, scores = list(sizes), dict[int, tuple[float, ...]]()
        with progress(len(numbers), "reference", shown=processes.first) as advance, torch.no_grad():
            for start in range(0, len(numbers), _TOGETHER * processes.world):
                part = numbers[start : start + _TOGETHER * processes.world]
                dealt = deal_rows([sizes[number] for number in part], self.row_tokens, processes.world)
                for row in dealt[processes.rank :: processes.world]:
                    scores |= self._row(model, task, [part[place] for place in row])
                advance(len(part))
        gathered: dict[int, tuple[float, ...]] = {}
        for found in processes.gather(scores):
            gathered |= found
        return {number: gathered[number] for number in numbers}

    def _row(self, model: Any, task: Task, numbers: list[int]) -> dict[int, tuple[float, ...]]:
        """The examples of a row; of none, padding is computed, since the other processes wait for it."""
        examples = [task.example(number) for number in numbers]
        packed = pack_examples(examples, self.row_tokens, self.pad, self.processes.device)
        found = iter(log_probabilities(model, packed).tolist())
        return {n: tuple(islice(found, len(e.trees))) for n, e in zip(numbers, examples, strict=True)}
