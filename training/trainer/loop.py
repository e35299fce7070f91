"""The training loop of every stage, on one process or many, and its metrics."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch

from pasta_async.errors import TrainingError
from pasta_async.jobs import progress
from pasta_async.training.trainer.processes import Checkpoints, Processes
from pasta_async.training.trainer.rows import deal_rows, log_probabilities, pack_row, row_length
from pasta_async.training.trainer.settings import Schedule, TrainerSettings
from pasta_async.training.trainer.task import Example, Task

_SCORED_TOGETHER = 256
"""Examples of each process that are dealt to rows at once, for the reference."""


def make_optimizers(model: Any, settings: TrainerSettings) -> list[torch.optim.Optimizer]:
    """AdamW over what is trained, or Muon and AdamW; only matrices inside the layers decay."""
    inside, others = list[Any](), list[Any]()
    for name, param in model.named_parameters():
        if param.requires_grad:
            (inside if ".layers." in name and param.ndim == 2 else others).append(param)
    lr, decay = settings.lr, settings.weight_decay
    adamw: Any = partial(torch.optim.AdamW, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    if settings.optimizer == "adamw":
        return [adamw([{"params": inside, "weight_decay": decay}, {"params": others}])]
    # The scale of Liu et al. (arXiv 2502.16982) makes updates as large as AdamW's: one rate serves both.
    muon = torch.optim.Muon(inside, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw(others)]


@dataclass
class Loop:
    """Updates, and where they stand.

    An update is the same for any number of processes: its examples are dealt to rows, each process computes
    its rows one by one and adds up gradients, and all are divided by what the examples of all processes
    weigh. What is random comes from the seed and the number of the update, so a checkpoint needs weights,
    moments and a number.
    """

    settings: TrainerSettings
    task: Task
    schedule: Schedule
    sizes: Mapping[int, int]
    """Tokens of examples by number, so that each process makes its own alone; empty for a stream."""
    model: Any
    """Sharded."""
    pad: int
    """Id that fills a row."""
    tag_rates: Mapping[int, float]
    """By the id of each tag, how many times as fast as others its rows of the embeddings learn."""
    processes: Processes
    step: int = 0
    _asked: bool = False  # this process was told to leave
    _leaving: bool = False  # all processes know it

    def __post_init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = make_optimizers(self.model, self.settings)

    def update(self) -> dict[str, float]:
        """Do one update, and return what there is to report about it.

        Raises:
            TrainingError: The loss or a gradient is not finite; the weights are as before the update.
        """
        start = time.perf_counter()
        torch.manual_seed(hash((self.settings.seed, self.step, self.processes.rank)))
        rate = self.schedule.rate(self.step)
        for group in [group for optimizer in self.optimizers for group in optimizer.param_groups]:
            group["lr"] = rate
        rows = [list(row.values()) for row in self._rows(self.schedule.examples_of(self.step))]
        examples = [example for row in rows for example in row]
        weights, lengths = sum(map(self.task.weight, examples)), sum(map(len, examples))
        views = sum(tree.unpacked() for example in examples for tree in example.trees)
        own = (weights, lengths, views, float(self._asked))
        weight, tokens, unpacked, stops = self.processes.sums(own)
        sums = self._gradients(rows, weight)
        loss, *others = (total / weight for total in self.processes.sums(sums))
        sharded: Any = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        norm = float(sharded.full_tensor())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"update {self.step + 1}: loss {loss}, norm of the gradient {norm}: "
                "lower --lr, or look at the data"
            )
        self._optimize()
        self.step += 1
        self._leaving = stops > 0
        seconds = time.perf_counter() - start
        return {
            "step": self.step,
            "epoch": self.step / self.schedule.epoch_steps,
            "loss": loss,
            **dict(zip(self.task.reported, others, strict=True)),
            "lr": rate,
            "grad_norm": norm,
            "tokens": tokens,
            "unpacked_tokens": unpacked,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1),
        }

    @torch.no_grad()
    def _optimize(self) -> None:
        """Let the optimizers step, and the tags' rows go as far as their rates say."""
        rows = [*self._tag_rows()]
        before = [local[[*rates]] for local, rates in rows]
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for (local, rates), old in zip(rows, before, strict=True):
            local[[*rates]] = old.lerp(local[[*rates]], local.new_tensor([*rates.values()])[:, None])

    def _tag_rows(self) -> Iterator[tuple[torch.Tensor, dict[int, float]]]:
        """This process's shard of each trained table, and the rates of tags' rows by their place in it."""
        for name, param in self.model.named_parameters() if {*self.tag_rates.values()} != {1} else ():
            if param.requires_grad and ("embed_tokens." in name or "lm_head." in name):
                # With adapters the tags' rows are a table of their own.
                rows = self.tag_rates if name.endswith(".weight") else range(len(self.tag_rates))
                local = param.detach().to_local()
                start = self.processes.rank * -(-param.shape[0] // self.processes.world)
                rates = zip(rows, self.tag_rates.values(), strict=True)
                yield local, {row - start: rate for row, rate in rates if start <= row < start + len(local)}

    def _rows(self, numbers: Sequence[int]) -> list[dict[int, Example]]:
        """This process's rows of these examples; a row has its examples by number."""
        made = {} if self.sizes else {number: self.task.example(number) for number in numbers}
        sizes = [self.sizes.get(number) or len(made[number]) for number in numbers]
        capacity = max(self.settings.filled_row(self.processes.device.type), *sizes)
        rank, world = self.processes.rank, self.processes.world
        dealt = deal_rows(sizes, capacity, world)[rank::world]
        own = [[numbers[place] for place in row] for row in dealt]
        return [{number: made.get(number) or self.task.example(number) for number in row} for row in own]

    def _scores(self, examples: Iterable[Example]) -> torch.Tensor:
        """The log-probability of each tree of a row's examples: [trees]. Without any, padding is computed."""
        trees = [tree for example in examples for tree in example.trees]
        device = self.processes.device
        length = row_length(sum(map(len, trees)), self.settings.longest_row, few=device.type == "cuda")
        return log_probabilities(self.model, pack_row(trees, length, self.pad, device))

    def _gradients(self, rows: Sequence[Sequence[Example]], weight: float) -> list[float]:
        """Add up gradients of the rows; returns the sums of the loss and of what the task reports."""
        sums = [0.0] * (1 + len(self.task.reported))
        for examples in rows:
            scores = self._scores(examples)
            if examples:
                parts = scores.split([len(example.trees) for example in examples])
                loss, reported = self.task.loss(parts, examples)
                values = [loss, *(reported[name] for name in self.task.reported)]
                sums = [total + float(value.detach()) for total, value in zip(sums, values, strict=True)]
            else:
                loss = scores.sum()  # other processes wait for this one's part
            (loss * (self.processes.world / weight)).backward()  # FSDP takes means over the processes
        return sums

    @torch.no_grad()
    def score_examples(self) -> dict[int, tuple[float, ...]]:
        """The log-probability of each tree of each example under the weights as they are, by its number.

        Every process must call it.
        """
        numbers, together = self.schedule.numbers, _SCORED_TOGETHER * self.processes.world
        scores: dict[int, tuple[float, ...]] = {}
        with progress(len(numbers), "reference", shown=self.processes.first) as advance:
            for start in range(0, len(numbers), together):
                part = numbers[start : start + together]
                for row in self._rows(part):
                    found = iter(self._scores(row.values()).tolist())
                    scores |= {number: tuple(islice(found, len(one.trees))) for number, one in row.items()}
                advance(len(part))
        self.model.reshard()
        return {number: score for part in self.processes.gather(scores) for number, score in part.items()}

    def run(self, checkpoints: Checkpoints) -> bool:
        """Update to the end of the schedule, with a progress bar, metrics and checkpoints.

        SIGTERM (as a scheduler sends it) or Ctrl-C, to any process, writes a checkpoint and leaves.

        Returns:
            Whether the end was reached (not so after `stop_at` or SIGTERM).

        Raises:
            TrainingError: As `update`, or the device has too little memory.
        """
        settings, last, first = self.settings, self.schedule.steps, self.processes.first
        stop = min(last, settings.stop_at or last)
        with ExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, self._leave))
            advance = stack.enter_context(progress(stop, "updates", done=self.step, shown=first))
            metrics = stack.enter_context(_open_metrics(settings.out, self.step)) if first else None
            while self.step < stop and not self._leaving:
                try:
                    report = self.update()
                except torch.OutOfMemoryError as error:
                    raise TrainingError(
                        f"update {self.step + 1} needs more memory than {self.processes.device} has: use "
                        "--recompute, fewer --row-tokens, --lora-rank, --dtype bfloat16 or more processes"
                    ) from error
                advance(note=f"loss {report['loss']:.4f}")
                if metrics:
                    metrics.write(json.dumps(report) + "\n")
                if self.step == stop or self._leaving or self.step % settings.save_every == 0:
                    checkpoints.save(self.step, self.model, self.optimizers)
        return self.step == last

    def _leave(self, *_: object) -> None:
        """Set a flag, which the next update shares with all processes: the handler of SIGTERM and Ctrl-C."""
        self._asked = True


def _open_metrics(folder: Path, start: int) -> TextIO:
    """FOLDER/metrics.jsonl: a line for each update, written at once. What comes after `start` is removed."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    path.write_text("".join(lines[:start]), encoding="utf-8")
    return path.open("a", encoding="utf-8", buffering=1)
