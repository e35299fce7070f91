"""A model without training that writes PASTA-LANG: each token has one successor, or a second choice.

Embeddings and output layer of a Llama hold a table; its layers add nothing. So greedy decoding walks the
table, and every text, tags included, is known beforehand.
"""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from pasta_async.lang.document import TAG_TOKENS

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 320  # 256 bytes, specials, tags, and some to spare
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ANSWER = 'A<promise topic="q" tokens="10"/>B<sync/>S!'
"""Main's text behind the chat template, if nobody forks and tags that it may not write are banned."""
CHUNK = "chk</async>"
"""The text behind `<async>`, in the same case."""
STRAY = ("A<async>", "B</async>", "c<async>", 'h"/>')
"""The text instead where it is not banned."""
ENDLESS = "Zz"
"""The text behind a Z, over and over."""


def tokenizer() -> Any:
    """One token for a byte, and the special ones."""
    library: Any = importlib.import_module("tokenizers")
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    byte_level = library.Tokenizer(
        library.models.BPE(vocab=dict(zip(alphabet, range(256), strict=True)), merges=[])
    )
    byte_level.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level.decoder = library.decoders.ByteLevel()
    tokens = (*SPECIALS, *TAG_TOKENS)
    byte_level.add_special_tokens(
        [library.AddedToken(token, special=True, normalized=False) for token in tokens]
    )
    return byte_level


def make(folder: Path, *, context: int = 4096) -> None:
    """Write the model as a Hugging Face folder."""
    byte_level = tokenizer()
    successors = {i: i for i in range(VOCABULARY)}  # what is not named is followed by itself
    for text in ("\n" + ANSWER + "</s>", "<async>" + CHUNK, ENDLESS + "Z"):
        successors.update(pairwise(byte_level.encode(text).ids))
    preferred = dict(byte_level.encode(text).ids for text in STRAY)
    weights = _weights(successors, preferred)
    safetensors: Any = importlib.import_module("safetensors.torch")
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer(folder, context=context)


def make_tokenizer(folder: Path, *, context: int = 4096) -> None:
    """Write the model's folder without its weights."""
    byte_level = tokenizer()
    byte_level.save(str(folder / "tokenizer.json"))
    specials = {name: byte_level.token_to_id(token) for name, token in (("bos", "<s>"), ("eos", "</s>"))}
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": VOCABULARY,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **{f"{name}_token_id": i for name, i in specials.items()},
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (("config", config), ("tokenizer_config", tokenizer_config)):
        (folder / f"{name}.json").write_text(json.dumps(content))


def _weights(table: dict[int, int], preferred: dict[int, int]) -> dict[str, torch.Tensor]:
    size, head = VOCABULARY, VOCABULARY // 4
    output = torch.zeros(size, size)
    for token, successor in table.items():
        output[successor, token] = 1.0
    for token, stray in preferred.items():
        output[stray, token] = 2.0
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": torch.eye(size),
        "lm_head.weight": output,
        "model.norm.weight": torch.ones(size),
        f"{layer}input_layernorm.weight": torch.ones(size),
        f"{layer}post_attention_layernorm.weight": torch.ones(size),
        f"{layer}self_attn.q_proj.weight": torch.zeros(size, size),
        f"{layer}self_attn.k_proj.weight": torch.zeros(2 * head, size),
        f"{layer}self_attn.v_proj.weight": torch.zeros(2 * head, size),
        f"{layer}self_attn.o_proj.weight": torch.zeros(size, size),
        f"{layer}mlp.gate_proj.weight": torch.zeros(8, size),
        f"{layer}mlp.up_proj.weight": torch.zeros(8, size),
        f"{layer}mlp.down_proj.weight": torch.zeros(size, 8),
    }
