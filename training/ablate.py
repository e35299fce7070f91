# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What the rules of PASTA-LANG are worth: `python -m pasta_async.training.ablate MODEL`.

A model that meets a broken rule for the first time fails for that reason alone. So a copy of the model is
first trained on documents that break the rule, and then measured on prompts that are held out.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pasta_async.training.data import collate
from pasta_async.training.evaluate import evaluate, load, table
from pasta_async.training.packing import pack_hidden, pack_views
from pasta_async.training.pretrain import loss_of
from pasta_async.training.synthetic import sample
from pasta_async.training.synthetic.records import parallel_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import LlamaForCausalLM

    from pasta_async.training.evaluate import Row
    from pasta_async.training.packing import Trie
    from pasta_async.training.tokenizer import Codec

__all__ = ["ablate", "main"]


def ablate(
    model: LlamaForCausalLM,
    codec: Codec,
    steps: int,
    batch: int,
    prompts: int,
    lr: float = 1e-3,
) -> list[Row]:
    """Train a model further with the rules broken (chunks of totals hidden, chains in parallel); measure it.

    Args:
        model: Trained in place.
        codec: Its tokenizer.
        steps: Updates.
        batch: Documents of an update.
        prompts: Held-out prompts of each family.
        lr: Peak learning rate of AdamW; it falls linearly to zero.
    """
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 20) * (1 - step / steps)
        drawn = collate([_draw(codec, rng) for _ in range(batch)], codec.pad)
        (loss_of(model, drawn) / len(drawn.labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return [
        evaluate(model, codec, "totals", "names", "chunks hidden", prompts)[0],
        evaluate(model, codec, "chain", "names", "forced parallel", prompts)[0],
    ]


def _draw(codec: Codec, rng: random.Random) -> Trie:
    family = rng.choice(("totals", "chain"))
    example = sample(family, rng.getrandbits(40), "train", codec.count)
    prompt = codec.prompt(example.prompt, pasta=True)
    if family == "totals":
        return pack_hidden(codec, prompt, example.document)
    return pack_views(codec, prompt, parallel_chain(example, codec.count))


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="pasta_async.training.ablate", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=12, help="documents of an update")
    parser.add_argument("--prompts", type=int, default=500)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(table(ablate(*load(args.model), args.steps, args.batch, args.prompts)))


if __name__ == "__main__":
    main()
