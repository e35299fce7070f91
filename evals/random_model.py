"""Make a model folder for measuring speed: random weights of a chosen shape, a tokenizer of given texts.

    python -m pasta_async.evals.random_model --documents documents.jsonl --shape small --out random-small
    python -m pasta_async.evals.random_model --documents documents.jsonl --shape 8b --no-weights --out 8b

Its answers are noise, so it is of use with forced decoding alone. The tokenizer is a byte-level BPE trained
on the very texts that are forced, with the tags in its vocabulary: token counts come close to those of a
large model's tokenizer. SGLang makes the weights of a folder without any by `--load-format dummy`.
"""

# torch and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.evals.documents import read_documents
from pasta_async.lang import TAG_TOKENS

Shape = Literal["tiny", "small", "medium", "135m", "1b", "8b"]
SHAPES: dict[Shape, tuple[int, ...]] = {
    "tiny": (64, 2, 4, 2, 128),
    "small": (256, 6, 8, 2, 704),
    "medium": (512, 12, 8, 4, 1536),
    "135m": (576, 30, 9, 3, 1536),
    "1b": (2048, 16, 32, 8, 8192),
    "8b": (4096, 32, 32, 8, 14336),
}
"""Llama shapes by name: `135m` is SmolLM2's, the last two are those of Llama 3."""

_SIZES = "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size".split()


def make_model(
    folder: Path,
    texts: Iterable[str],
    *,
    shape: Shape = "small",
    vocabulary: int = 8192,
    context: int = 8192,
    weights: bool = True,
) -> None:
    """Write the folder: config.json, tokenizer, and model.safetensors (float32) unless `weights` is off.

    The weights are the same each time. The vocabulary, which the tokenizer learns from the texts, counts the
    special tokens; it has fewer tokens than asked for if the texts do not give so many.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes |= zip(_SIZES, SHAPES[shape], strict=True)
    config = LlamaConfig(
        vocab_size=_save_tokenizer(folder, texts, vocabulary, context),
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        **sizes,
    )
    if weights:
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
        model.save_pretrained(folder)
    else:
        config.architectures = ["LlamaForCausalLM"]
        config.dtype = "bfloat16"  # what a server makes up weights of
        config.save_pretrained(folder)


def _save_tokenizer(folder: Path, texts: Iterable[str], vocabulary: int, context: int) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    from pasta_async.training.tokenizer import SPECIAL, save_tokenizer

    special = [AddedToken(text, special=True, normalized=False) for text in (*SPECIAL, *TAG_TOKENS)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    save_tokenizer(tokenizer, folder, context)
    return tokenizer.get_vocab_size()


class ModelSettings(CommandSettings):
    """What model is made."""

    documents: Path = Field(description="records (JSON lines) whose texts it must write")
    shape: Shape = Field(default="small", description="its size")
    vocabulary: Count = Field(default=8192, description="tokens, at most")
    context: Count = Field(default=8192, description="positions")
    weights: bool = Field(default=True, description="write weights; else config and tokenizer alone")
    out: Path = Field(description="the folder")


def _run(settings: ModelSettings) -> str:
    documents = read_documents(settings.documents)
    texts = (text for prompt, document in documents.items() for text in (prompt, document.text))
    make_model(settings.out, texts, **settings.model_dump(exclude={"documents", "out"}))
    return f"{settings.out}: {settings.shape}"


main: Command = command(ModelSettings, _run, "random_model", __doc__)

if __name__ == "__main__":
    main()
