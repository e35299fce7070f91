# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch.nn import functional
from torch.nn.attention.flex_attention import create_mask

from pasta_async.lang import parse
from pasta_async.training.rows import (
    Row,
    block_mask,
    deal_rows,
    pack_row,
    row_length,
    target_losses,
)
from pasta_async.training.trainer import Schedule, TrainerSettings
from pasta_async.training.views import Codec, Trie, encode_views, pack_views
from tests.helpers.adapter_folders import random_adapter
from tests.helpers.finetune_folders import ANSWERS, base_folder, tagged

CPU = torch.device("cpu")


def alone(model: Any, codec: Codec, prompt: list[int], written: str) -> torch.Tensor:
    """The log-probability of a document, each view computed by itself, with plain causal attention."""
    model.set_attn_implementation("sdpa")
    total = torch.zeros(())
    for view in encode_views(codec, parse(written)):
        context, target = [*prompt, *view.context], view.target
        logits = model(input_ids=torch.tensor([context + target]), use_cache=False).logits[0]
        lost = functional.cross_entropy(
            logits[len(context) - 1 : -1], torch.tensor(target, dtype=torch.int64), reduction="sum"
        )
        total = total - lost
    return total


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_a_packed_row_trains_as_each_view_alone(kind: str, tied: bool, tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base", kind, tie_word_embeddings=tied)
    base, codec = tagged(folder, tmp_path / "tokenizer")
    model: Any = base.make()
    prompt = codec.prompt([{"role": "user", "content": "Tell me of both wars."}])
    trees = [pack_views(codec, prompt, parse(written)) for written in ANSWERS]
    row = pack_row(trees, row_length(sum(map(len, trees)), 4096, CPU))
    losses = torch.split(target_losses(model, row), [len(tree.targets) for tree in trees])
    together = -torch.stack([part.mean() for part in losses])
    single = torch.stack([alone(model, codec, prompt, written) for written in ANSWERS])
    single /= torch.tensor([len(tree.targets) for tree in trees])
    torch.testing.assert_close(together, single, atol=1e-5, rtol=0)
    params = list(model.parameters())
    for tree in range(len(ANSWERS)):  # the gradient of each document, and so of any sum of them
        ours = torch.autograd.grad(together[tree], params, retain_graph=True)
        theirs = torch.autograd.grad(single[tree], params, retain_graph=True)
        for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
            assert (a - b).abs().max() < 1e-5, (ANSWERS[tree], name)


def test_a_token_sees_its_ancestors_and_itself() -> None:
    trie = Trie()
    stem = trie.extend(-1, [1, 2])
    for branch in ([3, 4], [3, 5, 6], [7]):
        trie.extend(stem, branch, target=True)
    trie.extend(trie.extend(stem, [3]), [8])
    size, length = len(trie), 32
    expected = torch.eye(length, dtype=torch.bool)  # padding sees itself
    places, _ = trie.preorder()
    for start in (0, size):
        for index, parent in enumerate(trie.parents):
            if parent >= 0:
                own, above = start + places[index], start + places[parent]
                expected[own] |= expected[above]
    row = pack_row([trie, trie], length)
    assert torch.equal(row.mask()[0, 0], expected)
    assert row.ids[0, :size].tolist() == [1, 2, 3, 4, 5, 6, 8, 7]
    assert row.positions[0, : 2 * size].tolist() == [0, 1, 2, 3, 3, 4, 3, 2] * 2
    assert row.labels.tolist() == [3, 4, 3, 5, 6, 7] * 2
    assert row.ids[0, row.predictors].tolist() == [2, 3, 2, 3, 5, 2] * 2


def test_the_block_mask_hides_what_the_dense_mask_hides(tmp_path: Path) -> None:
    _, codec = tagged(base_folder(tmp_path / "base"), tmp_path / "tokenizer")
    trees = [pack_views(codec, codec.encode("Tell"), parse(written)) for written in ANSWERS]
    row = pack_row(trees, 384)
    mask, dense = block_mask(row), row.mask()
    assert torch.equal(create_mask(mask.mask_mod, 1, 1, 384, 384, device="cpu"), dense)
    blocks = dense.view(1, 1, 3, 128, 3, 128).any(-1).any(-2)
    assert torch.equal(mask.to_dense() > 0, blocks)  # and it skips what holds nothing


def test_rows_are_dealt_evenly_and_completely() -> None:
    sizes = [700, 300, 500, 120, 90, 640, 1000, 10]
    for world in (1, 2, 3, 8):
        rows = deal_rows(sizes, 1024, world)
        assert len(rows) % world == 0
        assert sorted(index for row in rows for index in row) == list(range(len(sizes)))
        assert max(sum(sizes[index] for index in row) for row in rows) <= 1024
    longer = deal_rows([300, 3000, 200], 512, 1)
    assert sorted(map(sorted, longer)) == [[0, 2], [1]]
    gpu = torch.device("cuda")
    assert [row_length(used, 4096, gpu) for used in (1, 513, 4000, 4097)] == [128, 1024, 4096, 8192]
    assert [row_length(used, 4096, CPU) for used in (0, 16, 17)] == [16, 16, 32]


def test_every_epoch_holds_every_example_once() -> None:
    settings = TrainerSettings(model=Path(), out=Path(), batch=4, seed=3, epochs=2, lr=1.0, warmup=2)
    schedule = Schedule(settings, range(20, 31))
    assert schedule.steps == 6
    epochs = [[i for step in steps for i in schedule.examples_of(step)] for steps in ((0, 1, 2), (3, 4, 5))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20, 31))
    assert epochs[0] != epochs[1]
    assert [schedule.rate(step) for step in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def adapted(folder: Path, tied: bool) -> tuple[Any, Row]:
    """A model with adapters that change something, and a row of several trees and padding."""
    folder_of_base = base_folder(
        folder / "base", num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied
    )
    base, codec = tagged(folder_of_base, folder / "tokenizer", lora_rank=2)
    prompt = codec.prompt([{"role": "user", "content": "Tell"}])
    trees = [pack_views(codec, prompt, parse(written)) for written in ANSWERS]
    return random_adapter(base), pack_row(trees, row_length(sum(map(len, trees)), 4096, CPU) + 16)


def peft_losses(model: Any, row: Row) -> torch.Tensor:
    """The losses by peft's embedding layer, and by a table of all logits."""
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
