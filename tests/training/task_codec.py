"""The codec of the synthetic task's tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pasta_async.training.tokenizer import build_tokenizer, save_tokenizer
from pasta_async.training.trainer.vocabulary import ModelCodec


def task_codec() -> ModelCodec:
    """Encodes as the base model that `training.pretrain` makes."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(build_tokenizer(), Path(folder), 2048)
        return ModelCodec(Path(folder))
