"""Random models and tokenizers of the kinds that checkpoints have, written as real model folders."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tokenizers
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pasta_async.backends import WrappingBackend
from pasta_async.backends.local import LocalBackend
from pasta_async.errors import UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Piece


class Unconstrained(WrappingBackend):
    """A backend whose model may write any tag anywhere."""

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode without the grammar of tags."""
        return self.inner.decode(replace(request, tag_grammar=None))


libraries: Any = [tokenizers, torch, safetensors.torch]  # without types of their own
tk, untyped_torch, untyped_safetensors = libraries

CORPUS = [
    "Both wars reshaped Europe. The causes were many; the outcome was one.",
    "def f(x):\n    return x + 1  # ünïcödé, 漢字, emoji 🎉\n",
    "  leading and trailing spaces  \n\n\ttabs",
] * 4

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, no sharing of heads, tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "llama, one key for all heads, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama 3.1, all biases": {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"kind": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen3": {"kind": "qwen3", "head_dim": 32},
    "9 heads for 3 of keys, 30 layers": {
        "hidden_size": 72,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "num_hidden_layers": 30,
        "tie_word_embeddings": True,
    },
}
"""Arguments of `model` for each form of network that is supported."""


def byte_level(tags: bool = True) -> PreTrainedTokenizerFast:
    """The kind of GPT-2, Llama 3 and Qwen; with the tags as special tokens, and one that is not special."""
    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.normalizer = tk.normalizers.NFC()
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([*SPECIAL, *(TAG_TOKENS if tags else ())])
    tokenizer.add_tokens(["<think>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast


def sentencepiece(legacy: bool = True) -> PreTrainedTokenizerFast:
    """The kind of Llama 2: spaces are underlines, one stands before the text, bytes are a last resort."""
    tokenizer = tk.Tokenizer(tk.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = tk.normalizers.Replace(" ", "▁")
    if legacy:
        tokenizer.normalizer = tk.normalizers.Sequence([tk.normalizers.Prepend("▁"), replace])
    else:
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme="first", split=False
        )
    trainer = tk.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        limit_alphabet=60,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [entry for entry in raw["added_tokens"] if entry["id"] < 3]
    tokenizer = tk.Tokenizer.from_str(json.dumps(raw))
    tokenizer.decoder = tk.decoders.Sequence(
        [
            tk.decoders.Replace("▁", " "),
            tk.decoders.ByteFallback(),
            tk.decoders.Fuse(),
            tk.decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens([*SPECIAL[1:], *TAG_TOKENS])
    tokenizer.add_tokens(["<think>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = TEMPLATE
    return fast


def model(kind: str = "llama", seed: int = 0, vocabulary: int = 512, **changes: Any) -> Any:
    """A small random model (`llama`, `qwen2`, `qwen3`) whose greedy texts vary."""
    kinds: dict[str, Any] = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    config, make = kinds[kind]
    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    untyped_torch.manual_seed(seed)
    network: Any = make(config(**{**shape, **changes})).eval()
    for name, parameter in network.named_parameters():  # biases and norms that matter
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    return network


def greedy(network: Any, ids: list[int], count: int) -> list[int]:
    """The greedy tokens of transformers."""
    prompt = torch.tensor([ids])
    seen = torch.ones_like(prompt)
    out = network.generate(prompt, attention_mask=seen, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[0, len(ids) :].tolist()


async def engine_greedy(folder: Path, ids: list[int], count: int) -> list[int]:
    """The greedy tokens of the embedded engine."""
    request = DecodeRequest("a", 0, tuple(ids), count, Sampling())
    async with aclosing(LocalBackend(folder, device="cpu")) as backend:
        return [token async for piece in backend.decode(request) for token in piece.ids]


def configured(name: str, **changes: Any) -> Callable[[Path], None]:
    """A change to a JSON file of a folder."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def weighed(name: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """A change to the tensors of a file of a folder."""

    def damage(folder: Path) -> None:
        tensors = untyped_safetensors.load_file(folder / name)
        change(tensors)
        untyped_safetensors.save_file(tensors, folder / name)

    return damage


async def refused(folder: Path, message: str) -> None:
    """The embedded engine refuses a folder or file, which it names, for this reason."""
    backend = LocalBackend(folder, device="cpu")
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        await backend.connect()
    assert str(folder) in str(caught.value)
    await backend.aclose()


def save(folder: Path, network: Any, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Write model and tokenizer as a checkpoint folder."""
    network.save_pretrained(folder)
    as_saved: Any = tokenizer
    as_saved.save_pretrained(folder)
    return folder
