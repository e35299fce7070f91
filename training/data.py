"""Training batches, drawn on the fly from a seed."""

# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from pasta_async.lang.document import Document, Text
from pasta_async.training.packing import Trie, pack_plain, pack_views
from pasta_async.training.synthetic import FAMILIES, sample
from pasta_async.training.synthetic.families import make_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.training.tokenizer import Codec

__all__ = ["Batch", "Batches", "collate"]

_SYSTEM = ("You are a helpful assistant.", "Answer in short sentences.", "Be kind.")


class Batch(NamedTuple):
    """Packed documents: `ids`, `positions` [batch, length]; `mask` [batch, 1, length, length]."""

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor
    """[targets] row of each target."""
    parents: torch.Tensor
    """[targets] where in its row the token before a target stands: its logits predict it."""
    labels: torch.Tensor
    """[targets] id of each target."""


@dataclass(slots=True)
class Batches:
    """An endless stream of batches; `pool` and `index` say where it is, and can be set to go on from there.

    Documents are drawn in pools and sorted by length inside a pool, so that a batch holds about
    `tokens` tokens with little padding. In the first `copy_pools` pools a falling share of the documents only
    asks to copy names, because copying is what everything else needs first.
    """

    codec: Codec
    seed: int
    tokens: int
    copy_pools: int
    pool: int = 0
    index: int = 0
    pool_size: int = 240

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; `pool` and `index` already point behind the one that is yielded."""
        while True:
            plan = self._plan(self.pool)
            while self.index < len(plan):
                tries = plan[self.index]
                self.index += 1
                yield collate(tries, self.codec.pad)
            self.pool, self.index = self.pool + 1, 0

    def _plan(self, pool: int) -> list[list[Trie]]:
        rng = random.Random(f"{self.seed}/{pool}")
        tries = [self._draw(rng, pool) for _ in range(self.pool_size)]
        tries.sort(key=len)
        plan: list[list[Trie]] = [[]]
        for trie in tries:
            if plan[-1] and (len(plan[-1]) + 1) * len(trie) > self.tokens:
                plan.append([])
            plan[-1].append(trie)
        rng.shuffle(plan)
        return plan

    def _draw(self, rng: random.Random, pool: int) -> Trie:
        if rng.random() < 0.6 * (1 - pool / max(1, self.copy_pools)):
            return self._copying(rng)
        pasta = rng.random() < 0.5
        example = sample(rng.choice(FAMILIES), rng.getrandbits(40), "train", self.codec.count)
        system = rng.choice(_SYSTEM) if rng.random() < 0.05 else ""
        prompt = self.codec.prompt(example.prompt, pasta, system)
        return (pack_views if pasta else pack_plain)(self.codec, prompt, example.document)

    def _copying(self, rng: random.Random) -> Trie:
        text = " ".join(make_name(rng, held_out=False) for _ in range(rng.randint(4, 12)))
        return pack_plain(self.codec, self.codec.prompt(text, pasta=False), Document((Text(text),)))


def collate(tries: Sequence[Trie], pad: int) -> Batch:
    """Pad tries to one length, a multiple of 16."""
    length = -(-max(map(len, tries)) // 16) * 16
    ids = np.full((len(tries), length), pad, dtype=np.int64)
    positions = np.zeros((len(tries), length), dtype=np.int64)
    mask = np.stack([trie.mask(length) for trie in tries])[:, None]
    for row, trie in enumerate(tries):
        ids[row, : len(trie)] = trie.ids
        positions[row, : len(trie)] = trie.depths
    rows = [row for row, trie in enumerate(tries) for _ in trie.targets]
    parents = [trie.parents[target] for trie in tries for target in trie.targets]
    labels = [trie.ids[target] for trie in tries for target in trie.targets]
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(mask),
        torch.tensor(rows),
        torch.tensor(parents),
        torch.tensor(labels),
    )
