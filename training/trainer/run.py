"""A whole run: what is checked before the first update, training, and the export."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pasta_async.backends.local.checkpoint import read_config
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.jobs import progress
from pasta_async.training.trainer.loop import Loop
from pasta_async.training.trainer.model import REFUSAL, BaseModel, export_model, shard
from pasta_async.training.trainer.processes import Checkpoints, open_processes
from pasta_async.training.trainer.reference import reference_scores
from pasta_async.training.trainer.rows import choose_attention
from pasta_async.training.trainer.task import ComparedTask, Schedule
from pasta_async.training.trainer.vocabulary import ModelCodec, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pasta_async.training.trainer.processes import Processes
    from pasta_async.training.trainer.settings import TrainerSettings
    from pasta_async.training.trainer.task import Task

__all__ = ["measure", "train"]

_FREE = {
    *("out", "device", "dtype", "attention", "recompute", "save_every", "stop_at", "track", "threads"),
    "export_dtype",
}
"""Settings that may change when a run goes on: they do not change what it computes, but for rounding."""


def train(
    settings: TrainerSettings,
    make_task: Callable[[ModelCodec], Task],
    *,
    template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    both: bool = False,
) -> bool:
    """Train from a checkpoint folder to `OUT/model`, on this process or on all that torchrun started.

    A run that was interrupted goes on from its last checkpoint when it is called again with equal settings.

    Args:
        settings: Of the run.
        make_task: Makes the stage's task for the codec of the model.
        template: File of a chat template instead of the model's own.
        template_kwargs: Further values for the chat template.
        both: Whether the template must tell PASTA-LANG from the baseline (`write_tokenizer`).

    Returns:
        Whether the end was reached and the model written.

    Raises:
        UnsupportedModelError: The base model or its tokenizer cannot be used.
        InvalidRequestError: Data, template, vocabulary or a setting do not fit; nothing is done.
        TrainingError: Training cannot go on.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with open_processes(settings.device) as processes:
        base, codec = _open_base(settings, processes, template, template_kwargs, both)
        shape = base.shape()
        task = make_task(codec)
        sizes = measure(task, settings.row_tokens, shape.positions, processes, settings.drop_long)
        identity = settings.model_dump(mode="json", exclude=_FREE) | {"data": task.fingerprint}
        checkpoints = Checkpoints(settings.out / "checkpoints", identity, processes)
        latest = checkpoints.latest()
        if isinstance(task, ComparedTask):
            reference = reference_scores(
                settings.out / "reference.json",
                base,
                task,
                sizes,
                dtype=_dtype(settings.dtype, processes.device),
                row_tokens=settings.row_tokens,
                pad=codec.end,
                processes=processes,
            )
            task.compare_with(reference)
        loop = _make_loop(settings, base, codec, task, sizes, checkpoints, latest, processes)
        finished = loop.run(checkpoints)
        if finished:
            tokenizer, out = settings.out / "tokenizer", settings.out / "model"
            export_model(loop.model, base, tokenizer, codec.end, out, settings.export_dtype, processes)
        if processes.first:
            model = settings.out / "model"
            print(f"the model is in {model}" if finished else "stopped; the same command goes on")
        return finished


def _open_base(
    settings: TrainerSettings,
    processes: Processes,
    template: Path | None,
    template_kwargs: Mapping[str, Any] | None,
    both: bool,
) -> tuple[BaseModel, ModelCodec]:
    """The base model, checked but not loaded, and its codec; writes `OUT/tokenizer`."""
    attention = choose_attention(settings.attention, processes.device)
    read_config(settings.model, REFUSAL)
    tokenizer = settings.out / "tokenizer"
    added: list[int] = []
    if processes.first:
        text = None if template is None else _template_text(template)
        added = write_tokenizer(settings.model, tokenizer, text, both)
    added = processes.share(added)
    codec = ModelCodec(tokenizer, template_kwargs)
    base = BaseModel(
        settings.model, tuple(added), codec.tag_ids, attention, settings.lora_rank, settings.lora_alpha
    )
    return base, codec


def _make_loop(
    settings: TrainerSettings,
    base: BaseModel,
    codec: ModelCodec,
    task: Task,
    sizes: Mapping[int, int],
    checkpoints: Checkpoints,
    latest: int | None,
    processes: Processes,
) -> Loop:
    """The loop where it stands: at the last checkpoint, or with the base weights at the start."""
    schedule = Schedule.plan(len(sizes), settings.batch, settings.seed, settings.epochs, settings.steps)
    torch.manual_seed(settings.seed)
    model = base.loaded() if latest is None and processes.first else base.empty()
    if settings.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    shard(model, processes, _dtype(settings.dtype, processes.device), share=latest is None)
    loop = Loop(settings, task, sizes, model, codec.end, schedule, processes)
    if latest is not None:
        checkpoints.load(latest, model, loop.optimizer)
        loop.step = latest
    return loop


def measure(
    task: Task, row_tokens: int, positions: int, processes: Processes, drop_long: bool = False
) -> dict[int, int]:
    """The tokens of each example, counted by all processes together. Every process must call it.

    Args:
        task: Whose examples.
        row_tokens: Most tokens of a row.
        positions: Most positions of the model.
        processes: The run's.
        drop_long: Leave out examples that do not fit.

    Returns:
        Tokens by the number of the example, in order.

    Raises:
        InvalidRequestError: An example cannot be made, or does not fit, or there are none.
    """
    sizes: dict[int, int] = {}
    wrong: list[str] = []
    long: list[str] = []
    numbers = range(processes.rank, len(task), processes.world)
    with progress(len(numbers), "packing", shown=processes.first) as advance:
        for number in numbers:
            advance()
            try:
                example = task.example(number)
            except PastaError as error:
                wrong.append(str(error))
                continue
            depth = max(int(tree.positions.max()) + 1 for tree in example.trees)
            if len(example) > row_tokens or depth > positions:
                long.append(f"example {number} has {len(example)} tokens packed, its longest view {depth}")
            else:
                sizes[number] = len(example)
    parts = processes.gather((sizes, wrong, long))
    _refuse_examples([text for _, texts, _ in parts for text in texts], "cannot be used")
    too_long = [text for _, _, texts in parts for text in texts]
    if too_long and not drop_long:
        limit = f"do not fit rows of {row_tokens} or {positions} positions (--row-tokens, --drop-long)"
        _refuse_examples(too_long, limit)
    found = {number: size for part, _, _ in parts for number, size in part.items()}
    if not found:
        raise InvalidRequestError("there is no example to train on")
    if processes.first:
        print(f"{len(found)} examples, {sum(found.values())} tokens packed, {len(too_long)} too long")
    return dict(sorted(found.items()))


def _refuse_examples(reasons: list[str], what: str) -> None:
    if reasons:
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        raise InvalidRequestError(f"{len(reasons)} examples {what}: {'; '.join(reasons[:3])}{more}")


def _template_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"chat template {path} cannot be read: {error}") from error


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32
