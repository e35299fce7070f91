"""A checkpoint written as a folder in Hugging Face's layout, which transformers and SGLang load."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch

from pasta_async.backends.local.checkpoint import Checkpoint, expected_shapes
from pasta_async.errors import InvalidRequestError
from pasta_async.model_folder import TokenizerFiles, write_json
from pasta_async.progress import progress

ExportDType = Literal["float32", "bfloat16", "float16"]

FILE_BYTES = 10**9
"""Most bytes of weights in one file, and in memory while it is written, unless one tensor has more."""

_save_file: Any = getattr(safetensors_torch, "save_file")  # noqa: B009 (it has no types)
_split: Any = getattr(huggingface_hub, "split_state_dict_into_shards_factory")  # noqa: B009 (neither)


def export_folder(checkpoint: Checkpoint, out: Path, dtype: ExportDType = "float32") -> None:
    """Write config, weights, tokenizer with chat template, and ids that end an answer; adapters are merged.

    transformers and SGLang load the folder. Weights are read and written file by file.

    Args:
        checkpoint: The model.
        out: The folder; it appears when it is complete.
        dtype: Type of the weights; float32 loses nothing.

    Raises:
        InvalidRequestError: `out` is there already.
        UnsupportedModelError: The tokenizer cannot be used.
    """
    if out.exists():
        raise InvalidRequestError(f"{out} is there already: name a new folder")
    tokenizer = checkpoint.tokenizer_files()
    files = _text_files(checkpoint, tokenizer, dtype)  # raises before anything is written
    partial_out = out.with_name(f".{out.name}.pasta-export")
    shutil.rmtree(partial_out, ignore_errors=True)  # a process that was killed may have left it
    partial_out.mkdir(parents=True)
    try:
        for name, content in files.items():
            write_json(partial_out / name, content)
        if tokenizer.template:
            (partial_out / "chat_template.jinja").write_text(tokenizer.template, encoding="utf-8")
        _write_weights(checkpoint, partial_out, getattr(torch, dtype), f"writing {out.name}")
        partial_out.rename(out)
    finally:
        shutil.rmtree(partial_out, ignore_errors=True)


def _text_files(
    checkpoint: Checkpoint, tokenizer: TokenizerFiles, dtype: ExportDType
) -> dict[str, dict[str, Any]]:
    """The JSON files of a model folder, by name."""
    config = {key: value for key, value in checkpoint.raw.items() if key != "torch_dtype"}
    generation = {
        "eos_token_id": [*checkpoint.tokenizer().end_ids],
        **checkpoint.generation_defaults().model_dump(exclude_defaults=True),
    }
    named = {key: value for key, value in tokenizer.config.items() if key != "chat_template"}
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return {
        "config.json": {**config, "dtype": dtype},
        "generation_config.json": generation,
        "tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, **tokenizer.tokenizer},
        "tokenizer_config.json": {**plain, **named},
    }


def _write_weights(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, label: str) -> None:
    shapes = expected_shapes(checkpoint.config)
    split = _split(
        {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()},
        get_storage_size=int,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=FILE_BYTES,
    )
    with progress(len(shapes), label) as advance:
        for file, names in split.filename_to_tensors.items():
            tensors: dict[str, torch.Tensor] = {}
            for name in names:
                tensors[name] = checkpoint.tensor(name).to(dtype).contiguous()
                advance()
            try:
                _save_file(tensors, folder / file, {"format": "pt"})
            except SafetensorError as error:  # a full disk, say
                raise OSError(f"{file}: {error}") from error
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / "model.safetensors.index.json", index)
