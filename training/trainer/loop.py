"""The training loop of every stage, on one process or many."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
import signal
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pasta_async.errors import TrainingError
from pasta_async.jobs import progress
from pasta_async.training.trainer.metrics import Metrics
from pasta_async.training.trainer.rows import deal_rows, log_probabilities, pack_examples

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from pasta_async.training.trainer.processes import Checkpoints, Processes
    from pasta_async.training.trainer.rows import Example
    from pasta_async.training.trainer.settings import TrainerSettings
    from pasta_async.training.trainer.task import Schedule, Task

__all__ = ["Loop", "make_optimizer"]


def make_optimizer(model: Any, settings: TrainerSettings) -> torch.optim.Optimizer:
    """AdamW over what is trained; only matrices decay."""
    trained = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95))


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
    sizes: Mapping[int, int]
    """Tokens of each example that is trained on, by its number."""
    model: Any
    """Sharded."""
    pad: int
    """Id that fills a row."""
    schedule: Schedule
    processes: Processes
    step: int = 0
    _asked: bool = False  # this process was told to leave
    _leaving: bool = False  # all processes know it

    def __post_init__(self) -> None:
        self._numbers = list(self.sizes)
        self.optimizer: torch.optim.Optimizer = make_optimizer(self.model, self.settings)

    def update(self) -> dict[str, float]:
        """Do one update, and return what there is to report about it.

        Raises:
            TrainingError: The loss or a gradient is not finite; the weights are as before the update.
        """
        start = time.perf_counter()
        torch.manual_seed(hash((self.settings.seed, self.step, self.processes.rank)))
        rate = self.schedule.rate(self.step, self.settings.lr, self.settings.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rows = self._rows()
        examples = [example for row in rows for example in row]
        own = [
            sum(map(self.task.weight, examples)),
            sum(map(len, examples)),
            sum(tree.unpacked for example in examples for tree in example.trees),
            float(self._asked),
        ]
        weight, tokens, unpacked, stops = self.processes.sums(own)
        sums = self._gradients(rows, weight)
        loss, *others = (total / weight for total in self.processes.sums(sums))
        sharded: Any = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        norm = float(sharded.full_tensor())
        if not math.isfinite(loss) or not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"update {self.step + 1}: loss {loss}, norm of the gradient {norm}: "
                "lower --lr, or look at the data"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
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

    def _rows(self) -> list[list[Example]]:
        """This process's rows of examples."""
        numbers = [self._numbers[place] for place in self.schedule.examples_of(self.step)]
        sizes = [self.sizes[number] for number in numbers]
        dealt = deal_rows(sizes, self.settings.row_tokens, self.processes.world)
        mine = dealt[self.processes.rank :: self.processes.world]
        return [[self.task.example(numbers[place]) for place in row] for row in mine]

    def _gradients(self, rows: Sequence[Sequence[Example]], weight: float) -> list[float]:
        """Add up gradients of the rows; returns the sums of the loss and of what the task reports."""
        sums = [0.0] * (1 + len(self.task.reported))
        for examples in rows:
            row = pack_examples(examples, self.settings.row_tokens, self.pad, self.processes.device)
            scores = log_probabilities(self.model, row)
            if examples:
                parts = scores.split([len(example.trees) for example in examples])
                loss, reported = self.task.loss(parts, examples)
                values = [loss, *(reported[name] for name in self.task.reported)]
                sums = [total + float(value.detach()) for total, value in zip(sums, values, strict=True)]
            else:
                loss = scores.sum()  # padding alone: other processes wait for this one's part
            (loss * (self.processes.world / weight)).backward()  # FSDP takes means over the processes
        return sums

    def run(self, checkpoints: Checkpoints) -> bool:
        """Update to the end of the schedule, with a progress bar, metrics and checkpoints.

        SIGTERM (as a scheduler sends it) or Ctrl-C, to any process, writes a checkpoint and leaves.

        Returns:
            Whether the end was reached (not so after `stop_at` or SIGTERM).

        Raises:
            TrainingError: As `update`, or the device has too little memory.
        """
        settings, last = self.settings, self.schedule.steps
        stop = min(last, settings.stop_at or last)
        shown = progress(stop, "updates", done=self.step, shown=self.processes.first)
        with self._stoppable(), self._metrics() as write, shown as advance:
            while self.step < stop and not self._leaving:
                try:
                    report = self.update()
                except torch.OutOfMemoryError as error:
                    raise TrainingError(
                        f"update {self.step + 1} needs more memory than {self.processes.device} has: use "
                        "--recompute, fewer --row-tokens, --lora-rank, --dtype bfloat16 or more processes"
                    ) from error
                advance(note=f"loss {report['loss']:.4f}")
                write(report)
                if self.step == stop or self._leaving or self.step % settings.save_every == 0:
                    checkpoints.save(self.step, self.model, self.optimizer)
        return self.step == last

    @contextmanager
    def _metrics(self) -> Generator[Callable[[Mapping[str, float]], None]]:
        """Writes what an update reports, in the first process."""
        if not self.processes.first:
            yield lambda report: None
            return
        with closing(Metrics(self.settings.out, self.step, self.settings.track == "auto")) as metrics:
            yield metrics.write

    @contextmanager
    def _stoppable(self) -> Generator[None]:
        """Let SIGTERM and Ctrl-C set a flag, which the next update shares with all processes."""

        def leave(number: int, frame: object) -> None:
            self._asked = True

        before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
