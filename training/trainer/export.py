"""The trained model as a folder that transformers, the embedded engine and SGLang load."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import GenerationConfig

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.training.trainer.base_model import BaseModel
    from pasta_async.training.trainer.processes import Processes

__all__ = ["export_model"]


def export_model(
    model: Any, base: BaseModel, tokenizer: Path, end: int, out: Path, dtype: str, processes: Processes
) -> None:
    """Write the model, adapters merged, with its tokenizer. Every process must call it; the first one writes.

    Args:
        model: The sharded model.
        base: What it was made from.
        tokenizer: Folder of the tokenizer that it was trained with.
        end: The id that ends an answer; it is added to the end-of-text ids of the base model.
        out: The new folder; one that is there is replaced when the new one is complete.
        dtype: Of the weights: bfloat16, float16 or float32.
        processes: The run's.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    if processes.first:
        whole = base.empty()
        whole.load_state_dict(weights)
        if base.lora_rank:
            whole = whole.merge_and_unload()
        _write(whole.to(getattr(torch, dtype)), base.folder, tokenizer, end, out)
    processes.wait()


def _write(model: Any, folder: Path, tokenizer: Path, end: int, out: Path) -> None:
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(tokenizer, partial)
    model.config.use_cache = True
    model.generation_config = _generation(folder, model.config, end)
    model.save_pretrained(partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)


def _generation(folder: Path, config: Any, end: int) -> GenerationConfig:
    """The base model's, with the end of an answer first among the ids that end a text."""
    file = folder / "generation_config.json"
    generation: Any = GenerationConfig.from_pretrained(folder) if file.is_file() else GenerationConfig()
    known = generation.eos_token_id if generation.eos_token_id is not None else config.eos_token_id
    known = [] if known is None else [known] if isinstance(known, int) else list(known)
    generation.eos_token_id = list(dict.fromkeys([end, *known]))
    return generation
