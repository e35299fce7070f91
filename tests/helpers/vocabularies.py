"""Tokenizers made on the spot, of words and of bytes; the tags are tokens of theirs."""

from __future__ import annotations

import importlib
import json
from functools import cache
from typing import Any

from pasta_async.testing import chat_tokenizer, word_tokenizer
from pasta_async.tokenizer import Tokenizer

tokenizers: Any = importlib.import_module("tokenizers")  # most of it has no types

TEXTS = [
    "Both wars reshaped Europe, and the outcome of each was peace for a while.",
    "Tea has caffeine. Coffee has more caffeine than tea; water has none.\n\n- one\n\n```\ncode\n```",
    "A list:\n1. a\n2. b\n\nIn the end. <b>bold</b>, <i>this</i>/that.",
]
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(numbers: str) -> Any:
    """Cuts texts as Llama 3 and Qwen do, but for their numbers, which the expression matches."""
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(_LETTERS + numbers + _REST), "isolated")


@cache
def tokenizer(name: str) -> Tokenizer:
    """One of `TAGGED`."""
    if name == "words":
        return word_tokenizer(TEXTS)
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "bytes")
    library.pre_tokenizer = byte_level
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = byte_level.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=len(alphabet) + 220,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    library.train_from_iterator(TEXTS * 3, trainer)
    return chat_tokenizer(json.loads(library.to_str()))


TAGGED = ("words", "bytes", "merged")
"""Models that were trained to annotate, by their tokenizers.

`bytes` is byte-level BPE, as GPT-2 and Llama 3 have it: a character may be split over tokens. `merged` merges
across anything, so that words grow together with the text around.
"""
