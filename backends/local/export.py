"""Write any model that the engine opens as a plain folder in Hugging Face's layout."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import torch as safetensors_torch

from pasta_async.backends.local.checkpoint import (
    Checkpoint,
    expected_shapes,
    read_config,
)
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.jobs import progress, write_json

ExportDType = Literal["float32", "bfloat16", "float16"]

_save_file: Any = getattr(safetensors_torch, "save_file")  # noqa: B009 (it has no types)
FILE_BYTES = 4 * 10**9
"""Of weights in one file at most."""


def export_folder(checkpoint: Checkpoint, out: Path, dtype: ExportDType = "float32") -> None:
    """Write config, weights, tokenizer with chat template, and ids that end an answer; adapters are merged.

    transformers and SGLang load the folder. Weights are read and written a few gigabytes at a time.

    Args:
        checkpoint: The model.
        out: The folder; it appears when it is complete.
        dtype: Of the weights; float32 loses nothing.

    Raises:
        InvalidRequestError: `out` is there already.
        UnsupportedModelError: The tokenizer cannot be used, or no config.json can say how the model's
            positions are rotated.
    """
    if out.exists():
        raise InvalidRequestError(f"{out} is there already: name a new folder")
    ends = checkpoint.codec().end_ids  # what cannot be used is not written
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_configs(checkpoint, partial, dtype, ends)
        if read_config(partial) != checkpoint.config:
            raise UnsupportedModelError(
                f"{checkpoint.path}: its rotary positions are scaled in a way that no config.json says"
            )
        _write_weights(checkpoint, partial, getattr(torch, dtype))
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_configs(checkpoint: Checkpoint, folder: Path, dtype: str, ends: Sequence[int]) -> None:
    files = checkpoint.tokenizer()
    config = {key: value for key, value in checkpoint.raw.items() if key != "torch_dtype"}
    tokenizer = {key: value for key, value in files.config.items() if key != "chat_template"}
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "config.json", {**config, "dtype": dtype})
    defaults = checkpoint.generation_defaults()
    generation = {"eos_token_id": [*ends], **defaults._asdict()}
    given = {name: value for name, value in generation.items() if value}
    write_json(folder / "generation_config.json", given)
    complete = {"version": "1.0", "truncation": None, "padding": None, **files.tokenizer}
    write_json(folder / "tokenizer.json", complete)
    write_json(folder / "tokenizer_config.json", {**plain, **tokenizer})
    if files.template:
        (folder / "chat_template.jinja").write_text(files.template, encoding="utf-8")


def _write_weights(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype) -> None:
    shapes = expected_shapes(checkpoint.config)
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    parts = _parts(sizes)
    places: dict[str, str] = {}
    with progress(len(shapes), f"writing {folder.stem}") as advance:
        for number, names in enumerate(parts, 1):
            part = "" if len(parts) == 1 else f"-{number:05}-of-{len(parts):05}"
            file = f"model{part}.safetensors"
            tensors: dict[str, torch.Tensor] = {}
            for name in names:
                tensors[name] = checkpoint.tensor(name).to(dtype).contiguous()
                advance()
            _save_file(tensors, folder / file, {"format": "pt"})
            places |= dict.fromkeys(names, file)
    if len(parts) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        write_json(folder / "model.safetensors.index.json", index)


def _parts(sizes: Mapping[str, int]) -> list[list[str]]:
    """The tensors of each file, in order."""
    parts: list[list[str]] = [[]]
    for name, size in sizes.items():
        if parts[-1] and sum(sizes[other] for other in parts[-1]) + size > FILE_BYTES:
            parts.append([])
        parts[-1].append(name)
    return parts
