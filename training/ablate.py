# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""What the rules of PASTA-LANG are worth: `python -m pasta_async.training.ablate MODEL`.

A model that meets a broken rule for the first time fails for that reason alone. So a copy of the model is
first trained on documents that break the rule, and then measured on prompts that are held out.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import (
    LlamaForCausalLM,
    get_linear_schedule_with_warmup,  # pyright: ignore[reportUnknownVariableType]
)

from pasta_async import Client
from pasta_async.cli.command import run_command
from pasta_async.lang.document import ASYNC_CLOSE, ASYNC_OPEN
from pasta_async.training.evaluate import evaluate, table
from pasta_async.training.packing import pack_views
from pasta_async.training.pretrain import collate, loss_of, save_model
from pasta_async.training.synthetic import sample
from pasta_async.training.synthetic.records import parallel_chain
from pasta_async.training.tokenizer import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.evaluate import Row
    from pasta_async.training.packing import Trie

__all__ = ["AblateSettings", "ablate", "main"]


class AblateSettings(BaseModel):
    """How to train and measure. Every field is an option of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    model: Path = Field(description="folder of a model of the synthetic task")
    steps: int = Field(default=150, ge=0, description="updates with the rules broken")
    batch: int = Field(default=12, ge=1, description="documents of an update")
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate; it falls linearly to zero")
    prompts: int = Field(default=500, ge=1, description="held-out prompts of each family")


def ablate(settings: AblateSettings) -> list[Row]:
    """Train a copy with the rules broken (chunks of totals hidden, chains in parallel); measure it.

    Raises:
        PastaError: The model cannot be used.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(settings.model, dtype=torch.float32, attn_implementation="sdpa")
    codec = Codec.load(settings.model)
    _train(model, codec, settings)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, codec, Path(folder), torch.float32)
        return asyncio.run(_measured(folder, settings.prompts))


async def _measured(folder: str, prompts: int) -> list[Row]:
    async with Client(f"local:{folder}") as client:
        hidden, _ = await evaluate(client, "totals", "names", "chunks hidden", prompts)
        chains, _ = await evaluate(client, "chain", "names", "chain in parallel", prompts)
    return [hidden, chains]


def _train(model: LlamaForCausalLM, codec: Codec, settings: AblateSettings) -> None:
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 20, settings.steps)
    model.train()
    for _ in range(settings.steps):
        drawn = collate([_draw(codec, rng) for _ in range(settings.batch)], codec.pad)
        (loss_of(model, drawn) / len(drawn.labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _draw(codec: Codec, rng: random.Random) -> Trie:
    family = rng.choice(("totals", "chain"))
    example = sample(family, rng.getrandbits(40), "train", codec.count)
    prompt = codec.prompt(example.prompt, pasta=True)
    if family == "totals":
        hidden = (codec.special(ASYNC_OPEN), codec.special(ASYNC_CLOSE))
        return pack_views(codec, prompt, example.document, hidden)
    return pack_views(codec, prompt, parallel_chain(example, codec.count))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    run_command(
        AblateSettings,
        lambda settings: print(table(ablate(settings))),
        program="pasta_async.training.ablate",
        description=__doc__,
        positional=("model",),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
