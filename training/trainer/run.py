"""A whole run: what is checked before the first update, training, and the export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pasta_async.backends.local.bases import ADAPTER_CONFIG, base_of
from pasta_async.backends.local.checkpoint import read_config, read_json
from pasta_async.backends.local.linear import fast_bfloat16
from pasta_async.backends.local.memory import keep_freed_memory
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.jobs import progress
from pasta_async.training.identity import model_digest
from pasta_async.training.trainer.loop import Loop
from pasta_async.training.trainer.model import REFUSAL, BaseModel, export_model, shard
from pasta_async.training.trainer.processes import Checkpoints, Processes, open_processes
from pasta_async.training.trainer.settings import Schedule, TrainerSettings
from pasta_async.training.trainer.task import Task
from pasta_async.training.trainer.vocabulary import ModelCodec, write_tokenizer

_FREE = {*"out device dtype recompute save_every stop_at threads export_dtype start_share".split()}
"""Settings that may change when a run goes on: they do not change what it computes, but for rounding."""
_BY_CONTENT = {"model", "chat_template"}
"""Settings that name what counts for what is in it."""


def train(
    settings: TrainerSettings,
    folder: Path,
    make_task: Callable[[ModelCodec], Task],
    *,
    template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    both: bool = False,
    start_share: float = 0.0,
) -> bool:
    """Train from a checkpoint folder to `OUT/model`, on this process or on all that torchrun started.

    A run that was interrupted goes on from its last checkpoint when it is called again with equal settings.

    Args:
        settings: Of the run.
        folder: Of a Llama, Qwen2 or Qwen3, or of an adapter of this trainer: rank and scale are its own.
        make_task: Makes the stage's task for the codec of the model.
        template: File of a chat template instead of the model's own.
        template_kwargs: Further values for the chat template.
        both: Whether the template must tell PASTA-LANG from the baseline (`write_tokenizer`).
        start_share: Of the weights at the start in those that are written.

    Returns:
        Whether the end was reached and the model written.

    Raises:
        UnsupportedModelError: The base model or its tokenizer cannot be used.
        InvalidRequestError: Data, template, vocabulary or a setting do not fit; nothing is done.
        TrainingError: Training cannot go on.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    keep_freed_memory()
    with open_processes(settings.device) as processes:
        tokenizer = settings.out / "tokenizer"
        if processes.first:
            write_tokenizer(folder, tokenizer, template and _template_text(template), both)
        processes.wait()
        codec = ModelCodec(tokenizer, template_kwargs)
        settings, base = _base_model(settings, folder, codec)
        positions = read_config(base.folder, REFUSAL).positions
        task, sizes = make_task(codec), dict[int, int]()
        if not task.stream:
            sizes, ids = _usable(task, settings, positions, processes)
            base = replace(base, unused=frozenset(codec.tag_ids) - ids)
        identity = settings.model_dump(mode="json", exclude=_FREE | _BY_CONTENT) | {
            "data": task.fingerprint,
            "model": [model_digest(one) for one in dict.fromkeys((folder, base.folder))],
            "tokenizer": model_digest(tokenizer),
        }
        checkpoints = Checkpoints(settings.out / "checkpoints", identity, processes)
        loop = _make_loop(settings, base, codec, task, sizes, checkpoints, processes)
        out, dtype = settings.out / "model", settings.export_dtype
        finished = loop.run(checkpoints)
        if finished:
            export_model(loop.model, base, tokenizer, codec.end, out, dtype, processes, start_share)
        if processes.first:
            print(f"the model is in {out}" if finished else "stopped; the same command goes on")
        return finished


def _base_model(
    settings: TrainerSettings, folder: Path, codec: ModelCodec
) -> tuple[TrainerSettings, BaseModel]:
    """What is trained, and the settings with nothing left open."""
    adapter = folder if (folder / ADAPTER_CONFIG).is_file() else None
    if adapter is not None:
        config = read_json(adapter / ADAPTER_CONFIG)
        folder, rank = base_of(adapter, config), config["r"]
        if settings.lora_rank not in (0, rank):
            raise InvalidRequestError(f"--lora-rank: {adapter} is of rank {rank}; leave it out")
        settings = settings.model_copy(update={"lora_rank": rank, "lora_alpha": config["lora_alpha"]})
    base = BaseModel(folder, codec.tag_ids, settings.lora_rank, settings.lora_alpha, adapter)
    return settings.resolved(adapter is None and bool(base.new_tags())), base


def _make_loop(
    settings: TrainerSettings,
    base: BaseModel,
    codec: ModelCodec,
    task: Task,
    sizes: Mapping[int, int],
    checkpoints: Checkpoints,
    processes: Processes,
) -> Loop:
    """The loop where it stands: at the last checkpoint, or with the base weights at the start."""
    latest = checkpoints.latest()
    from_base = task.compared or latest is None or settings.lora_rank > 0  # no checkpoint has what is frozen
    torch.manual_seed(settings.seed)  # pyright: ignore[reportUnknownMemberType]
    model = base.loaded() if from_base and processes.first else base.empty()
    if settings.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    (dtype, *_) = processes.gather(_dtype(settings.dtype, model, processes.device))  # one for all
    shard(model, processes, dtype, share=from_base)
    numbers = range(len(task)) if task.stream else list(sizes)
    schedule = Schedule(settings, numbers, shuffled=not task.stream)
    rates = {tag: 0.0 if tag in base.unused else settings.tag_rate for tag in codec.tag_ids}
    loop = Loop(settings, task, schedule, sizes, model, codec.end, rates, processes)
    if task.compared:  # by the weights at the start
        task.reference = loop.score_examples()
    if latest is not None:
        checkpoints.load(latest, model, loop.optimizers)
        loop.step = latest
    return loop


def _usable(
    task: Task, settings: TrainerSettings, positions: int, processes: Processes
) -> tuple[dict[int, int], set[int]]:
    """The tokens of the examples to train on, by number, and all ids in them; a process looks at its share.

    Raises:
        InvalidRequestError: An example cannot be made, or does not fit, or there are none.
    """
    sizes, ids, wrong, long = dict[int, int](), set[int](), list[str](), list[str]()
    share = range(processes.rank, len(task), processes.world)
    with progress(len(share), "packing", shown=processes.first) as advance:
        for number in share:
            advance()
            try:
                example = task.example(number)
            except PastaError as error:
                wrong.append(str(error))
                continue
            deepest = 1 + max(max(tree.depths(), default=0) for tree in example.trees)
            if len(example) > settings.longest_row or deepest > positions:
                long.append(f"example {number} has {len(example)} tokens packed, its longest view {deepest}")
            else:
                sizes[number] = len(example)
                ids.update(*(tree.ids for tree in example.trees))
    parts = processes.gather((sizes, ids, wrong, long))
    _refuse([text for *_, texts, _ in parts for text in texts], "cannot be used")
    too_long = [text for *_, texts in parts for text in texts]
    if not settings.drop_long:
        rows = f"rows of {settings.longest_row} or {positions} positions"
        _refuse(too_long, f"do not fit {rows} (--row-tokens, --drop-long)")
    found = {number: size for part, *_ in parts for number, size in part.items()}
    if not found:
        raise InvalidRequestError("there is no example to train on")
    if processes.first:
        print(f"{len(found)} examples, {sum(found.values())} tokens packed, {len(too_long)} too long")
    return dict(sorted(found.items())), set[int]().union(*(part for _, part, *_ in parts))


def _refuse(examples: list[str], what: str) -> None:
    if examples:
        more = f"; and {len(examples) - 3} more" if len(examples) > 3 else ""
        raise InvalidRequestError(f"{len(examples)} examples {what}: {'; '.join(examples[:3])}{more}")


def _template_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"chat template {path} cannot be read: {error}") from error


def _dtype(name: str, model: Any, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "bfloat16" if fast_bfloat16(model.num_parameters(), device) else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32
