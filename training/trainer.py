"""The trainer of both stages: settings, schedule, updates, checkpoints and the whole run.

A stage brings a `Task`: examples as trees, whose targets become likelier. It runs on one process, or on all
that torchrun or `accelerate launch` started: each has the whole model, and computes its share of the
examples.
"""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import json
import math
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TextIO

import torch
from accelerate import Accelerator
from pydantic import Field

from pasta_async.backends.local.checkpoint import open_folder, read_json
from pasta_async.backends.local.machine import keep_freed_memory
from pasta_async.backends.local.pull import ADAPTER_CONFIG, base_path, is_adapter
from pasta_async.backends.options import TorchDType
from pasta_async.cli.command import CommandSettings
from pasta_async.errors import InvalidRequestError, PastaError, TrainingError
from pasta_async.progress import progress
from pasta_async.training.model import ModelMaker, export_model, write_tokenizer
from pasta_async.training.model_digest import model_digest
from pasta_async.training.rows import (
    Row,
    computes_half,
    deal_rows,
    pack_row,
    row_length,
    target_losses,
)
from pasta_async.training.views import Codec, Trie

_ROW = 4096
_CPU_ROW = 512
_TAG_TABLE = "trainable_tokens_delta"
"""Part of the name of a parameter that holds the tags' rows of an adapter."""
_LARGEST_NORM = 1.0
"""Largest norm of a gradient: a larger one is scaled down to it."""
_MAY_CHANGE = {"out", "row_tokens", "dtype", "recompute", "save_every"}
"""Settings that may change when a run is resumed: they change nothing in its results but rounding."""
_BY_CONTENT = {"model", "chat_template", "data", "samples", "scores"}
"""Settings that name files: their content, not their name, must be the same."""


# --- settings


class TrainerSettings(CommandSettings):
    """Options of a training run."""

    model: Path = Field(
        description="checkpoint folder to start from (Llama, Qwen2 or Qwen3), or an adapter to train on"
    )
    out: Path = Field(description="folder of the run: metrics, checkpoints, and the trained model, OUT/model")
    batch: int = Field(default=8, ge=1, description="examples of an update, over all processes")
    row_tokens: int = Field(
        default=0,
        ge=0,
        multiple_of=16,
        description="tokens of a packed row, of which a process computes one at a time (0: 4,096; on a CPU "
        "512, and as many as an example needs up to 4,096)",
    )
    epochs: float = Field(default=4, gt=0, description="how often the data are used")
    steps: int = Field(default=0, ge=0, description="updates in all, instead of epochs (0: by epochs)")
    lr: float = Field(default=0, ge=0, description="peak learning rate (0: 1e-5, for adapters 5e-4)")
    tag_rate: float = Field(
        default=0,
        ge=0,
        description="of adapters: how many times as fast the rows of the tag tokens learn (0: 20 for a model "
        "that did not know the tags, else 1)",
    )
    warmup: int = Field(default=0, ge=0, description="updates over which the learning rate rises")
    seed: int = Field(default=0, description="seed of the order of the data, and of new weights")
    dtype: TorchDType = Field(
        default="auto",
        description="of the computation, weights stay float32; auto: bfloat16 on CUDA, else float32",
    )
    recompute: bool = Field(default=False, description="gradient checkpointing: compute activations again")
    lora_rank: int = Field(default=0, ge=0, description="train adapters of this rank only (0: all weights)")
    lora_alpha: float | None = Field(
        default=None, gt=0, description="scale of new adapters (default: 16), divided by their rank"
    )
    save_every: int = Field(default=200, ge=1, description="updates between checkpoints")
    drop_long: bool = Field(default=False, description="leave out examples that are too long, and count them")

    adapter_lr: ClassVar[float] = 5e-4

    @property
    def longest_row(self) -> int:
        """Tokens that an example may have."""
        return self.row_tokens or _ROW

    def filled_row(self, device: str) -> int:
        """Tokens up to which rows are filled on a kind of device; attention costs the square of them."""
        return self.row_tokens or (_ROW if device == "cuda" else _CPU_ROW)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The examples of an update, shuffled anew in each epoch, and its learning rate, by its number alone."""

    settings: TrainerSettings
    numbers: Sequence[int]
    """The numbers of the examples that are trained on."""

    @property
    def epoch_steps(self) -> int:
        """Updates of one epoch; the last one may have fewer examples."""
        return math.ceil(len(self.numbers) / self.settings.batch)

    @property
    def steps(self) -> int:
        """Updates in all."""
        return self.settings.steps or max(1, round(self.settings.epochs * self.epoch_steps))

    def examples_of(self, step: int) -> list[int]:
        """The numbers of the examples of an update, the first of which is step 0."""
        epoch, update = divmod(step, self.epoch_steps)
        order = _order(len(self.numbers), self.settings.seed, epoch)
        start = update * self.settings.batch
        return [self.numbers[index] for index in order[start : start + self.settings.batch]]

    def rate(self, step: int) -> float:
        """The learning rate of an update: it rises to the peak, and falls linearly to zero."""
        warmup = self.settings.warmup
        rising = (step + 1) / max(1, warmup)
        falling = (self.steps - step) / max(1, self.steps - warmup)
        return self.settings.lr * min(1.0, rising, falling)


@lru_cache(maxsize=2)
def _order(examples: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(examples))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


# --- tasks


@dataclass(frozen=True, slots=True)
class Task:
    """Examples by number, whose targets become likelier; an update minimises a mean over them."""

    count: int
    """Examples in an epoch."""
    example: Callable[[int], Trie]
    """Makes an example, the same one in every process; a `PastaError` says why it cannot be trained on."""
    weight: Callable[[Trie], float]
    """The weight of an example in the mean. The number of its targets lets each of them count the same."""


# --- updates


class PackedLoss(torch.nn.Module):
    """The model with its loss in one forward pass, as data-parallel training needs it."""

    def __init__(self, model: Any, half: bool) -> None:
        super().__init__()
        self.model = model
        self.computes_half = half  # in bfloat16; trained weights stay float32

    def forward(self, row: Row) -> torch.Tensor:
        """The sum of the losses of a row's targets, float32."""
        with torch.autocast(row.ids.device.type, torch.bfloat16, enabled=self.computes_half):
            return target_losses(self.model, row).sum()


class Loop:
    """The updates of a run: its model, its optimizer, and the number of the next update.

    An update is the same for any number of processes: its examples are dealt to rows, each process computes
    its rows one by one and adds up gradients, and all are divided by the weights of the examples of all
    processes. Nothing is random in it but the order of the examples, which comes from the seed and the number
    of the update, so a checkpoint needs weights, moments and that number.

    Args:
        settings: Options of the run.
        task: What is learned.
        sizes: Tokens of each example that is trained on, by its number.
        base: Makes the model.
        accelerator: Joins the processes.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        task: Task,
        sizes: Mapping[int, int],
        base: ModelMaker,
        accelerator: Accelerator,
    ) -> None:
        self.settings = settings
        self.task = task
        self.sizes = sizes
        self.accelerator = accelerator
        self.schedule: Schedule = Schedule(settings, list(sizes))
        self.step: int = 0
        self._asked_to_leave = False  # this process was told to
        self._leaving = False  # all processes know it
        torch.manual_seed(settings.seed)
        self.model: Any = base.make()
        if settings.recompute:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        half = computes_half(settings.dtype, accelerator.device)
        if half:
            _compute_in_half(self.model)
        self._unused = _unused_rows(self.model, base)
        named = self.model.named_parameters()
        self.trained: dict[str, torch.nn.Parameter] = {name: p for name, p in named if p.requires_grad}
        tags = [param for name, param in self.trained.items() if _TAG_TABLE in name]
        others = [param for name, param in self.trained.items() if _TAG_TABLE not in name]
        groups = [{"params": others, "rate": 1.0}, {"params": tags, "rate": settings.tag_rate}]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self._loss: Any = accelerator.prepare(PackedLoss(self.model, half))

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.step = state["step"]
        for name, param in self.trained.items():
            param.data.copy_(state["model"][name])
        self.optimizer.load_state_dict(state["optimizer"])

    def update(self) -> dict[str, float]:
        """Do one update, and return its line of the metrics.

        Raises:
            TrainingError: The loss or a gradient is not finite; the weights are as before the update.
        """
        # 1. Rates depend on the number of the update alone.
        start = time.perf_counter()
        rate = self.schedule.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        # 2. This process's rows. The weight of all processes' examples is needed before the gradients.
        rows = self._rows(self.schedule.examples_of(self.step))
        trees = [tree for row in rows for tree in row]
        own_weight = sum(map(self.task.weight, trees))
        own_tokens = sum(map(len, trees))
        weight, tokens = self._sums((own_weight, own_tokens))
        # 3. Gradients, which the processes share, and the step. Who was asked to leave meanwhile tells all.
        own_loss = self._gradients(rows, weight) / weight
        loss, stops = self._sums((own_loss, float(self._asked_to_leave)))
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained.values(), _LARGEST_NORM))
        if not (math.isfinite(loss) and math.isfinite(norm)):
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
            "loss": loss,
            "lr": rate,
            "grad_norm": norm,
            "tokens": tokens,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1),
        }

    def _sums(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, in float64."""
        summands = torch.tensor(values, dtype=torch.float64, device=self.accelerator.device)
        return self.accelerator.reduce(summands).tolist()  # pyright: ignore[reportAttributeAccessIssue]

    def _rows(self, numbers: Sequence[int]) -> list[list[Trie]]:
        """This process's rows of these examples."""
        sizes = [self.sizes[number] for number in numbers]
        capacity = self.settings.filled_row(self.accelerator.device.type)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        dealt = deal_rows(sizes, capacity, world)[rank::world]
        return [[self.task.example(numbers[index]) for index in row] for row in dealt]

    def _gradients(self, rows: Sequence[Sequence[Trie]], weight: float) -> float:
        """Add up gradients of the rows; returns the sum of their losses."""
        device = self.accelerator.device
        total = 0.0
        for index, trees in enumerate(rows):
            length = row_length(sum(map(len, trees)), self.settings.longest_row, device)
            last = index == len(rows) - 1  # then the processes share their gradients
            with nullcontext() if last else self.accelerator.no_sync(self._loss):
                # Without any tree padding is computed: other processes wait for this one's part.
                loss = self._loss(pack_row(trees, length, device))
                # Gradients are means over the processes.
                (loss * (self.accelerator.num_processes / weight)).backward()
            total += float(loss.detach())
        for param, unused in self._unused:
            if param.grad is not None:
                param.grad[unused] = 0.0
        return total

    def run(self, checkpoint: Path, identity: Mapping[str, Any]) -> bool:
        """Update to the end of the schedule, with a progress bar, metrics and checkpoints.

        SIGTERM (as a scheduler sends it) or Ctrl-C, to any process, writes a checkpoint and leaves.

        Returns:
            True if the end was reached.

        Raises:
            TrainingError: `update` raises it, or the device has too little memory.
        """
        settings = self.settings
        last = self.schedule.steps
        with ExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, self._leave))
            first = self.accelerator.is_main_process
            advance = stack.enter_context(progress(last, "updates", done=self.step, shown=first))
            metrics = stack.enter_context(_open_metrics(settings.out, self.step)) if first else None
            while self.step < last and not self._leaving:
                try:
                    report = self.update()
                except torch.OutOfMemoryError as error:
                    ways = [f"fewer --row-tokens (the longest example has {max(self.sizes.values())})"]
                    if not settings.recompute:
                        ways.append("--recompute")
                    if not self.step and not settings.lora_rank:  # a run that has begun stays what it is
                        ways.append("--lora-rank")
                    raise TrainingError(
                        f"update {self.step + 1} needs more memory than {self.accelerator.device} has: "
                        f"use {' or '.join(ways)}"
                    ) from error
                advance(note=f"loss {report['loss']:.4f}")
                if metrics:
                    metrics.write(json.dumps(report) + "\n")
                # `update` shares the wish to leave, so all processes come here at the same step.
                if self.step == last or self._leaving or self.step % settings.save_every == 0:
                    if first:
                        self._save(checkpoint, identity)
                    self.accelerator.wait_for_everyone()
        return self.step == last

    def _save(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Write a checkpoint, first under another name: a run that is killed goes on from a whole one."""
        weights = {name: param.detach() for name, param in self.trained.items()}
        state = {"identity": dict(identity), "step": self.step, "model": weights}
        torch.save({**state, "optimizer": self.optimizer.state_dict()}, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)

    def _leave(self, *_: object) -> None:
        """Set a flag, which the update under way shares: the handler of SIGTERM and Ctrl-C."""
        self._asked_to_leave = True


def _open_metrics(folder: Path, start: int) -> TextIO:
    """FOLDER/metrics.jsonl: a line for each update, written at once. What comes after `start` is removed."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    path.write_text("".join(lines[:start]), encoding="utf-8")
    return path.open("a", encoding="utf-8", buffering=1)


# --- runs and checkpoints


def load_checkpoint(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last checkpoint of a run: its identity, what is trained, moments and the update; None at the start.

    Raises:
        InvalidRequestError: It belongs to a run with other settings or data.
    """
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    for name, value in identity.items():
        if (old := state["identity"].get(name)) != value:
            raise InvalidRequestError(
                f"{path} is of a run with {name} {old!r}, now it is {value!r}: "
                "take the old value to go on, or another --out to start anew"
            )
    return state


# --- a whole run


def train(
    settings: TrainerSettings,
    make_task: Callable[[Codec], Task],
    *,
    template: Path | None = None,
    both: bool = False,
    start_share: float = 0.0,
) -> bool:
    """Train from a checkpoint folder to `OUT/model`, on this process or on all that torchrun started.

    A run that was interrupted goes on from its last checkpoint when it is called again with equal settings.

    Args:
        settings: Options of the run; `model` is a Llama, Qwen2 or Qwen3, or an adapter of this trainer, which
            brings its own rank and scale.
        make_task: Makes the stage's task for the codec of the model.
        template: File of a chat template instead of the model's own.
        both: The template must tell PASTA-LANG from the baseline (`write_tokenizer`).
        start_share: Share of the weights at the start in those that are written (`export_model`).

    Returns:
        True if the end was reached and the model written.

    Raises:
        UnsupportedModelError: The base model or its tokenizer cannot be used.
        InvalidRequestError: Data, template, vocabulary or a setting do not fit. No update is done, but
            `OUT/tokenizer` may have been written.
        TrainingError: Training cannot go on.
    """
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    first = accelerator.is_main_process
    loop: Loop | None = None
    keep_freed_memory()
    try:
        tokenizer = settings.out / "tokenizer"
        if first:
            write_tokenizer(settings.model, tokenizer, template and template.read_text("utf-8"), both)
        accelerator.wait_for_everyone()
        codec = Codec(tokenizer)
        settings, base = _base_model(settings, codec)
        task = make_task(codec)
        usable = _usable(task, settings, open_folder(base.folder).config.positions, first)
        base = replace(base, unused=frozenset(codec.tag_ids) - usable.ids)
        identity = settings.model_dump(mode="json", exclude=_MAY_CHANGE | _BY_CONTENT) | {
            "data": usable.digest,
            "model": model_digest(settings.model),
            "tokenizer": model_digest(tokenizer),
        }
        checkpoint = settings.out / "checkpoint.pt"
        out = settings.out / "model"
        state = load_checkpoint(checkpoint, identity)
        steps = Schedule(settings, list(usable.sizes)).steps
        finished = state is not None and state["step"] == steps and out.is_dir()
        if not finished:
            loop = Loop(settings, task, usable.sizes, base, accelerator)
            if state is not None:
                loop.resume(state)
                state = None  # it is as large as the model
            finished = loop.run(checkpoint, identity)
            if finished and first:
                export_model(loop.model, base, tokenizer, codec.end, out, start_share)
            accelerator.wait_for_everyone()
        if first:
            print(f"the model is in {out}" if finished else "stopped; the same command goes on")
        return finished
    finally:
        # The model has to go before its processes part. As the last owner of their group it would end gloo's
        # thread while it holds Python's lock, for which that thread may be waiting.
        loop = None
        accelerator.free_memory()
        accelerator.end_training()


def _base_model(settings: TrainerSettings, codec: Codec) -> tuple[TrainerSettings, ModelMaker]:
    """The model that is trained, and the settings with nothing left open."""
    folder, rank, alpha = settings.model, settings.lora_rank, settings.lora_alpha or 16.0
    adapter = None
    if is_adapter(folder):
        adapter = folder
        config = read_json(adapter / ADAPTER_CONFIG)
        folder = base_path(adapter)
        if rank not in (0, config["r"]):
            raise InvalidRequestError(f"--lora-rank: {adapter} is of rank {config['r']}; leave it out")
        if settings.lora_alpha not in (None, config["lora_alpha"]):
            raise InvalidRequestError(f"--lora-alpha: {adapter} has {config['lora_alpha']}; leave it out")
        rank, alpha = config["r"], config["lora_alpha"]
    if settings.tag_rate and not rank:
        raise InvalidRequestError("--tag-rate is for adapters: they have the tags' rows in a table")
    base = ModelMaker(folder, codec.tag_ids, rank, alpha, adapter)
    rates = {
        "lr": settings.lr or (settings.adapter_lr if rank else 1e-5),
        "tag_rate": settings.tag_rate or (20.0 if rank and adapter is None and base.new_tags() else 1.0),
    }
    return settings.model_copy(update={"lora_rank": rank, "lora_alpha": alpha, **rates}), base


def _compute_in_half(model: Any) -> None:
    """Put frozen weights into bfloat16, and the computations that autocast does not reach."""
    for param in model.parameters():
        if not param.requires_grad:
            param.data = param.data.to(torch.bfloat16)
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):  # peft's layers: autocast casts their inputs
            module.cast_input_dtype_enabled = False
    # Autocast leaves the positions in the embedding's format; the rotation would then be in float32.
    model.get_decoder().rotary_emb.register_forward_hook(_in_half)


def _in_half(_module: Any, _inputs: Any, tables: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(table.to(torch.bfloat16) for table in tables)


def _unused_rows(model: Any, base: ModelMaker) -> list[tuple[torch.nn.Parameter, list[int]]]:
    """The parameters that have rows of tags, and the rows of those tags that are in no example.

    Without a gradient they stay at the mean of all rows; AdamW would move them as far as any other.
    """
    rows = [row for row, tag in enumerate(base.tag_ids) if tag in base.unused]
    tables: list[tuple[torch.nn.Parameter, list[int]]] = []
    for name, param in model.named_parameters():
        if _TAG_TABLE in name:
            tables.append((param, rows))
        elif "embed_tokens." in name or "lm_head." in name:
            tables.append((param, [base.tag_ids[row] for row in rows]))
    return tables


class Examples(NamedTuple):
    """The examples to train on."""

    sizes: dict[int, int]
    """The tokens of each, by its number."""
    ids: set[int]
    """All ids that are in them."""
    digest: str
    """Hexadecimal digits that stand for their content."""


def _usable(task: Task, settings: TrainerSettings, positions: int, first: bool) -> Examples:
    """The examples that can be trained on.

    Raises:
        InvalidRequestError: An example cannot be made, or does not fit, or there are none.
    """
    sizes: dict[int, int] = {}
    ids: set[int] = set()
    digest = hashlib.sha256()
    malformed: list[str] = []
    too_long: list[str] = []
    with progress(task.count, "packing", shown=first) as advance:
        for number in range(task.count):
            advance()
            try:
                example = task.example(number)
            except PastaError as error:
                malformed.append(str(error))
                continue
            deepest = 1 + max(example.depths(), default=0)
            if len(example) > settings.longest_row or deepest > positions:
                size = f"{len(example)} tokens packed, its longest view {deepest}"
                too_long.append(f"example {number} has {size}")
            else:
                sizes[number] = len(example)
                ids.update(example.ids)
                digest.update(repr((example.ids, example.parents, example.targets)).encode())
    _refuse(malformed, "cannot be used")
    if not settings.drop_long:
        rows = f"rows of {settings.longest_row} or {positions} positions"
        _refuse(too_long, f"do not fit {rows} (--row-tokens, --drop-long)")
    if not sizes:
        raise InvalidRequestError("there is no example to train on")
    if first:
        print(f"{len(sizes)} examples, {sum(sizes.values())} tokens packed, {len(too_long)} too long")
    return Examples(sizes, ids, digest.hexdigest()[:16])


def _refuse(examples: Sequence[str], reason: str) -> None:
    if examples:
        raise InvalidRequestError(f"{len(examples)} examples {reason}, first {'; '.join(examples[:3])}")
