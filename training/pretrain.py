"""Train a small Llama from scratch on the synthetic task: `python -m pasta_async.training.pretrain`.

It is the base model of the shipped one. It learns both forms, PASTA-LANG and the plain baseline, so that it
brings what a large base model has anyway: it can follow markup. A run is seeded, and one that was interrupted
goes on from its checkpoint exactly as if nothing had happened; behind `torchrun` it uses several processes.

Muon (Jordan et al., 2024) trains the matrices inside the layers, AdamW the rest.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from pasta_async.cli.command import Command, command
from pasta_async.lang.document import Document, Text
from pasta_async.training.packing import Trie, pack_plain, pack_views
from pasta_async.training.synthetic.families import FAMILIES, make_name, sample
from pasta_async.training.tokenizer import BEGIN, END, PAD, SPECIAL, build_tokenizer, save_tokenizer
from pasta_async.training.trainer.processes import is_first, only_run
from pasta_async.training.trainer.run import train
from pasta_async.training.trainer.settings import TrainerSettings
from pasta_async.training.trainer.task import Example, Task
from pasta_async.training.trainer.vocabulary import ModelCodec

_SYSTEM = ("You are a helpful assistant.", "Answer in short sentences.", "Be kind.")


class PretrainSettings(TrainerSettings):
    """A training run."""

    steps: int = Field(default=6500, ge=1, description="updates")
    batch: int = Field(default=21, ge=1, description="documents of an update, over all processes")
    row_tokens: int = Field(default=512, ge=512, multiple_of=16, description="tokens of a packed row")
    lr: float = Field(default=3e-3, gt=0, description="peak learning rate")
    warmup: int = Field(default=60, ge=0, description="updates over which the learning rate rises")
    decay: float = Field(
        default=0.5, gt=0, le=1, description="share of the other updates, at the end, over which it falls"
    )
    optimizer: Literal["adamw", "muon"] = Field(default="muon", description="of the matrices in the layers")
    weight_decay: float = Field(default=0.01, ge=0, description="decay of the matrices inside the layers")
    copying: int = Field(
        default=7200, ge=0, description="first documents, a falling share of which only copies names"
    )
    plain: bool = Field(default=False, description="a base without tags: answers are plain in either form")
    hidden: int = Field(default=192, description="width of the model")
    layers: int = Field(default=4, description="its layers")
    heads: int = Field(default=4, description="its attention heads of 64")
    kv_heads: int = Field(default=2, description="its key-value heads")
    inner: int = Field(default=512, description="width of its feed-forward layers")
    context: int = Field(default=2048, description="longest context, in tokens")


class Stream(Task):
    """Documents of the synthetic task, drawn as they are needed, in order."""

    stream: bool = True

    def __init__(self, settings: PretrainSettings, codec: ModelCodec) -> None:
        self._settings, self._codec = settings, codec

    def __len__(self) -> int:
        return self._settings.steps * self._settings.batch

    def example(self, index: int) -> Example:
        """Draw a document, with random numbers that belong to its number.

        At first many only copy names, which is what everything else needs.
        """
        rng = random.Random(f"{self._settings.seed}/{index}")
        if rng.random() < 0.6 * (1 - index / max(1, self._settings.copying)):
            text = " ".join(make_name(rng, held_out=False) for _ in range(rng.randint(4, 12)))
            prompt = self._codec.prompt([{"role": "user", "content": text}], pasta=False)
            return Example((pack_plain(self._codec, prompt, Document((Text(text),))),))
        return Example((_document(self._codec, rng, tags=not self._settings.plain),))


def pretrain(settings: PretrainSettings) -> bool:
    """Train to the end, or to `stop_at`; see `train`, whose errors it raises. The model is OUT/model."""
    start = settings.out / "start"
    with only_run(settings.out):
        if is_first():
            write_new_model(settings, start)
        return train(settings, start, partial(Stream, settings))


def _document(codec: ModelCodec, rng: random.Random, *, tags: bool) -> Trie:
    pasta = rng.random() < 0.5
    example = sample(rng.choice(FAMILIES), rng.getrandbits(40), "train", codec.count)
    messages = [{"role": "user", "content": example.prompt}]
    if rng.random() < 0.05:
        messages = [{"role": "system", "content": rng.choice(_SYSTEM)}, *messages]
    pack = pack_views if pasta and tags else pack_plain
    return pack(codec, codec.prompt(messages, pasta), example.document)


def write_new_model(settings: PretrainSettings, folder: Path) -> None:
    """Write a Llama with fresh weights, and its tokenizer."""
    tokenizer = build_tokenizer()
    save_tokenizer(tokenizer, folder, settings.context)
    special: dict[str, Any] = {"bos_token_id": SPECIAL.index(BEGIN), "eos_token_id": SPECIAL.index(END)}
    special["pad_token_id"] = SPECIAL.index(PAD)
    shape = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=64,
        intermediate_size=settings.inner,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        **special,
    )
    torch.manual_seed(settings.seed)  # pyright: ignore[reportUnknownMemberType]
    model: Any = LlamaForCausalLM(shape)
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(folder)


main: Command = command(PretrainSettings, pretrain, "pasta_async.training.pretrain", __doc__, resumes=True)

if __name__ == "__main__":
    main()
