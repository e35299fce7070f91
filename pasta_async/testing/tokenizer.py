"""Tokenizers of scripted models: real ones, made in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from pasta_async.lang.document import TAG_TOKENS
from pasta_async.model_folder import TokenizerFiles
from pasta_async.tokenizer import Tokenizer

_END_OF_TEXT = "<|endoftext|>"
_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")
_MARKERS = (*(f"<|{role}|>" for role in _CHAT_ROLES), "<|end|>", "<|answer|>", "<|plain answer|>")
_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role not in ROLES or message.content is not string -%}
{{- raise_exception("a message needs a text, and a role among " ~ ROLES | join(", ")) -}}
{%- endif -%}
{{- "<|" ~ message.role ~ "|>" ~ message.content ~ "<|end|>" -}}
{%- endfor -%}
{{- "<|answer|>" if pasta is undefined or pasta else "<|plain answer|>" -}}
""".replace("ROLES", repr(_CHAT_ROLES))

_WORD_TOKEN = r" ?[^\W\d_]{1,12}| ?\d{1,3}| ?[^\w\s]|_|\s"


def chat_tokenizer(vocabulary: Mapping[str, Any], *, tags: bool = True) -> Tokenizer:
    """A tokenizer with the scripted models' chat template.

    Each message stands between two marker tokens. The template variable ``pasta=False`` asks for an answer
    without tags.

    Args:
        vocabulary: A parsed `tokenizer.json`. End-of-text, tags and markers are added to it.
        tags: True if the tags are tokens of it, as in a model that was trained to annotate.
    """
    names = [_END_OF_TEXT, *(TAG_TOKENS if tags else ()), *_MARKERS]
    first = len(vocabulary["model"]["vocab"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": first + index, "content": name, "special": True, **flags} for index, name in enumerate(names)
    ]
    files = TokenizerFiles({**vocabulary, "added_tokens": added}, {"eos_token": _END_OF_TEXT}, _TEMPLATE)
    return Tokenizer(files)


def word_tokenizer(texts: Iterable[str], *, tags: bool = True) -> Tokenizer:
    """A tokenizer in which each word of the texts, with the space in front of it, is one token.

    Numbers of up to three digits and single signs in the texts are tokens, too. Other text is encoded byte by
    byte.
    """
    words = {word for text in texts for word in re.findall(_WORD_TOKEN, text)}
    return _word_tokenizer(tuple(sorted(words)), tags)


@lru_cache(256)
def _word_tokenizer(words: tuple[str, ...], tags: bool) -> Tokenizer:
    from tokenizers import pre_tokenizers

    byte_level: Any = cast("Any", pre_tokenizers).ByteLevel(add_prefix_space=False, use_regex=False)
    spelled: list[str] = [byte_level.pre_tokenize_str(word)[0][0] for word in words]
    alphabet: list[str] = sorted(byte_level.alphabet())
    # A unigram model takes the likeliest cut: with these scores whole words where there are any, else bytes.
    vocab: list[list[Any]] = [[character, -10.0] for character in alphabet]
    vocab += [[word, -1.0] for word in spelled if len(word) > 1]
    by_words = {"type": "Split", "pattern": {"Regex": _WORD_TOKEN}, "behavior": "Isolated", "invert": False}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary: dict[str, Any] = {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [by_words, by_bytes]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "Unigram", "unk_id": None, "vocab": vocab, "byte_fallback": False},
    }
    return chat_tokenizer(vocabulary, tags=tags)
