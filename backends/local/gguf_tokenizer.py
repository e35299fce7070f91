"""The tokenizer of a GGUF file, made of its metadata in the form of Hugging Face's `tokenizer.json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pasta_async.backends.tokenization import TokenizerFiles

_LOG = logging.getLogger(__name__)
_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # types of tokens

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_DIGITS = r"\p{N}"
_CUTS: dict[str, tuple[str | None, bool]] = {
    # how a text is cut before it is merged: by what, and whether by GPT-2's expression after that
    "gpt-2": (None, True),
    "smollm": (_DIGITS, True),
    "llama-bpe": (_LLAMA3, False),
    "llama3": (_LLAMA3, False),
    "llama-v3": (_LLAMA3, False),
    "qwen2": (_QWEN2, False),
    "deepseek-r1-qwen": (_QWEN2, False),
}

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")
"""Tokens that end a text or a turn, whichever of them the metadata names."""


def gguf_tokenizer(metadata: Mapping[str, Any]) -> TokenizerFiles:
    """The tokenizer with the chat template, of a file's metadata.

    Raises:
        KeyError: A key is missing.
        ValueError: The tokenizer is of another kind than byte-level BPE or SentencePiece's BPE, or cuts texts
            in another way than GPT-2, SmolLM, Llama 3 or Qwen2; or it is malformed.
    """
    given = {key.removeprefix(_KEY): value for key, value in metadata.items() if key.startswith(_KEY)}
    match given["model"]:
        case "gpt2":
            tokenizer = _byte_level(given)
        case "llama":
            tokenizer = _sentencepiece(given)
        case other:
            raise ValueError(f"it is of the kind {other!r}, not 'gpt2' or 'llama'")
    tokens: list[str] = given["tokens"]
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    config: dict[str, Any] = {
        f"{name}_token": tokens[given[f"{key}_token_id"]]
        for name, key in names.items()
        if given.get(f"{key}_token_id") is not None
    }
    return TokenizerFiles(tokenizer, config, metadata.get("tokenizer.chat_template"), _ends(given))


def _ends(given: Mapping[str, Any]) -> tuple[int, ...]:
    named = [given.get(f"{key}_token_id") for key in ("eos", "eot", "eom")]
    commands = {token: i for i, token in enumerate(given["tokens"]) if given["token_type"][i] == _CONTROL}
    return tuple(dict.fromkeys(i for i in (*named, *map(commands.get, _ENDS)) if i is not None))


def _byte_level(given: Mapping[str, Any]) -> dict[str, Any]:
    """As GPT-2 has it."""
    kind = given.get("pre", "default")
    if kind == "default":
        _LOG.warning("the GGUF file does not say how texts are cut into words; GPT-2's way is taken")
        kind = "gpt-2"
    if kind not in _CUTS:
        raise ValueError(f"its pre-tokenizer is {kind!r}, not one of {', '.join(_CUTS)}")
    cut, gpt2 = _CUTS[kind]
    llama3 = cut is _LLAMA3
    split = {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": gpt2}
    return {
        "model": {
            "type": "BPE",
            "vocab": _vocabulary(given),
            "merges": [merge.split(" ") for merge in given["merges"]],
            "ignore_merges": llama3,
        },
        "added_tokens": _added(given),
        "normalizer": {"type": "NFC"} if kind == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level] if cut else [byte_level]},
        "post_processor": _opening(given, default=llama3),
        "decoder": byte_level,
    }


def _sentencepiece(given: Mapping[str, Any]) -> dict[str, Any]:
    """As Llama 2 has it."""
    vocabulary = _vocabulary(given)
    prefix = [{"type": "Prepend", "prepend": "▁"}] if given.get("add_space_prefix", True) else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": _merges(vocabulary, given["scores"], given["token_type"]),
            "unk_token": given["tokens"][given.get("unknown_token_id", 0)],
            "fuse_unk": True,
            "byte_fallback": _BYTE in given["token_type"],
        },
        "added_tokens": _added(given),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, replace]},
        "pre_tokenizer": None,
        "post_processor": _opening(given, default=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def _vocabulary(given: Mapping[str, Any]) -> dict[str, int]:
    tokens, types = given["tokens"], given["token_type"]
    return {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}


def _added(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens that are found in a text as they are, before it is cut."""
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": given["tokens"][i], "special": kind != _USER_DEFINED, **rest}
        for i, kind in enumerate(given["token_type"])
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _merges(
    vocabulary: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best token first: what its scores amount to."""
    pieces = {token: i for token, i in vocabulary.items() if types[i] not in (_UNKNOWN, _CONTROL, _BYTE)}
    found = [
        (-scores[i], cut, pieces[token[:cut]], token[:cut], token[cut:])
        for token, i in pieces.items()
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _opening(given: Mapping[str, Any], *, default: bool) -> dict[str, Any] | None:
    """The beginning-of-text token, where texts have one."""
    number = given.get("bos_token_id")
    if number is None or not given.get("add_bos_token", default):
        return None
    token = given["tokens"][number]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, other],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
