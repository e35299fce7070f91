"""Adapters with random values, written by the trainer beside the merged model, as a run writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from pasta_async.training.model import ModelMaker, export_model
from tests.helpers.finetune_folders import base_folder, tagged


class AdapterRun(NamedTuple):
    """The folders of a run, and its base's."""

    base: Path
    model: Path
    """Merged."""
    adapter: Path


def random_adapter(base: ModelMaker) -> Any:
    """The model with adapters that change something."""
    model: Any = base.make()
    torch.manual_seed(1)  # pyright: ignore[reportUnknownMemberType]
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def adapter_run(folder: Path, kind: str = "llama", *, tied: bool = True) -> AdapterRun:
    """Make a base model, and an adapter and a merged model as the trainer exports them."""
    run = AdapterRun(folder / "base", folder / "run" / "model", folder / "run" / "adapter")
    base_folder(run.base, kind, tie_word_embeddings=tied)
    base, codec = tagged(run.base, folder / "tokenizer", 2, both=True)
    export_model(random_adapter(base), base, folder / "tokenizer", codec.end, run.model)
    return run
