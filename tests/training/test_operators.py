# torch, transformers and peft leave some of their types open.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_folders import ANSWERS, base_folder
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch.nn import functional

from pasta_async.lang import parse
from pasta_async.training.model import BaseModel, ModelCodec, write_tokenizer
from pasta_async.training.rows import Row, pack_row, target_losses
from pasta_async.training.views import pack_views


def adapted(folder: Path, tied: bool) -> tuple[Any, Row]:
    """A model with adapters that change something, and a row of several trees and padding."""
    base = base_folder(
        folder / "base", num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied
    )
    write_tokenizer(base, folder / "tokenizer")
    codec = ModelCodec(folder / "tokenizer")
    model = BaseModel(base, codec.tag_ids, lora_rank=2).loaded()
    for param in model.parameters():
        if param.requires_grad:
            torch.nn.init.normal_(param, std=0.1)
    prompt = codec.prompt([{"role": "user", "content": "Tell"}])
    trees = [pack_views(codec, prompt, parse(written)) for written in ANSWERS]
    return model, pack_row(trees, -(-sum(map(len, trees)) // 16) * 16 + 16, codec.end)


def peft_losses(model: Any, row: Row) -> torch.Tensor:
    """The losses by peft and transformers, with the mask of the whole row and a table of all logits."""
    model.set_attn_implementation("sdpa")
    embedding = model.get_input_embeddings().token_adapter
    ours, embedding.forward = embedding.forward, TrainableTokensLayer.forward.__get__(embedding)
    logits = model(input_ids=row.ids, attention_mask=row.mask(), position_ids=row.positions).logits[0]
    embedding.forward = ours
    return functional.cross_entropy(logits[row.predictors].float(), row.labels, reduction="none")


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_learn_what_peft_would_have_them_learn(tied: bool, tmp_path: Path) -> None:
    model, row = adapted(tmp_path, tied)
    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    ours, theirs = target_losses(model, row), peft_losses(model, row)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    weights = torch.linspace(-1, 1, len(ours))  # each target counts another way
    found, expected = (
        torch.autograd.grad((losses * weights).mean(), [*trained.values()]) for losses in (ours, theirs)
    )
    for name, one, other in zip(trained, found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4, msg=name)
    with torch.no_grad():
        assert torch.equal(target_losses(model, row), ours)
