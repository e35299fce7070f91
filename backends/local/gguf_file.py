"""GGUF files: their names, sizes, tensors and tokenizer in the terms of Hugging Face's folders.

The header is read and checked as a whole when a file is opened: architecture, sizes, names and shapes of the
tensors. Quantised tensors become float32 as they are read. For int8 all of it is read once (`stored`).
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFValueType,
    dequantize,
    get_tensor_name_map,
)

from pasta_async.backends.local.checkpoint import (
    UnusableError,
    compare_shapes,
    expected_shapes,
    model_config,
    well_formed,
)
from pasta_async.model_folder import TokenizerFiles

if TYPE_CHECKING:
    import torch

_DEQUANTISED_AT_ONCE = 2**17  # weights: they stay in the processor's cache
_LENGTH = struct.Struct("<Q")  # of a string in the header, in bytes

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SIZES = {  # key of a config.json: key of a GGUF file, behind the architecture
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_FURTHER_SIZES = {  # the same for those that a file may lack
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
}
_ROPE_DIVISORS = "rope_freqs.weight"
_MOST_DIVISORS = 512  # half of the largest head
_FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Tensor(NamedTuple):
    shape: tuple[int, ...]  # `[out, in]` for matrices
    kind: GGMLQuantizationType
    offset: int
    size: int  # bytes


class GGUFFile:
    """An opened GGUF file.

    Attributes:
        raw: The parsed config.json that a folder would have.

    Raises:
        UnsupportedModelError: It is no whole GGUF file of version 2 or 3, of a Llama, Qwen2 or Qwen3 model
            that the engine computes, or has tensors of a type that the `gguf` package cannot dequantise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with well_formed(path):
            with path.open("rb") as file:  # torch wants memory that could be written to
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._header = _Header(self._data)
            self.raw: dict[str, Any] = _raw_config(self._header.metadata, self._header.tensors, self._data)
            self._config = model_config(self.raw, path)
        # GGUF has names of its own for tensors. Shapes are compared under these, by which tensors are read:
        # the kernels trust a shape that was compared.
        names = get_tensor_name_map(MODEL_ARCH[self.raw["model_type"].upper()], self._config.layers)
        expected = expected_shapes(self._config)
        self._names = {name: names.get_name(name, (".weight", ".bias")) or name for name in expected}
        shapes = {name: entry.shape for name, entry in self._header.tensors.items() if name != _ROPE_DIVISORS}
        compare_shapes(path, {self._names[name]: shape for name, shape in expected.items()}, shapes)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its Hugging Face name."""
        values = _values(self._data, self._header.tensors[self._names[name]])
        part = name.rsplit(".", 2)[-2]
        if self._config.architecture == "LlamaForCausalLM" and part in ("q_proj", "k_proj"):
            return _in_halves(values, self._config.head_dim)
        return values

    def tokenizer_files(self) -> TokenizerFiles:
        """The tokenizer and the chat template.

        Raises:
            UnsupportedModelError: The tokenizer is malformed, or of a kind that is not supported.
        """
        with well_formed(self._path):
            return _tokenizer_files(self._header.metadata)


def _values(data: mmap.mmap, entry: _Tensor) -> torch.Tensor:
    """A tensor's numbers: float types where they lie in the file, others dequantised to float32."""
    import torch  # takes two seconds: not when a file is merely opened

    count = math.prod(entry.shape)
    if (name := _FLOAT_TYPES.get(entry.kind.name)) is not None:
        dtype: torch.dtype = getattr(torch, name)
        return torch.frombuffer(data, dtype=dtype, count=count, offset=entry.offset).view(entry.shape)
    block, size = GGML_QUANT_SIZES[entry.kind]
    raw = np.frombuffer(data, np.uint8, entry.size, entry.offset)
    values = np.empty(count, np.float32)
    step = _DEQUANTISED_AT_ONCE // block
    for first in range(0, entry.size // size, step):
        part = raw[first * size : (first + step) * size]
        values[first * block : (first + step) * block] = dequantize(part[None], entry.kind)[0]
    if sys.platform == "linux":  # let the pages go: those of all tensors are as large as the file
        first_page = entry.offset // mmap.PAGESIZE * mmap.PAGESIZE
        data.madvise(mmap.MADV_DONTNEED, first_page, entry.offset + entry.size - first_page)
    return torch.as_tensor(values).view(entry.shape)


def _in_halves(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows `[heads * head_dim, ...]` from GGUF's order (pairs rotate) to Hugging Face's (halves do)."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


# The header -----------------------------------------------------------------------------------------------


class _Header:
    """The metadata and the tensors' entries of a file; a malformed one raises an error for `well_formed`.

    The `gguf` package's reader takes half a minute for 150,000 tokens.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0  # the byte to read next
        magic, version, tensors, keys = self._take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("it is not a little-endian GGUF file of version 2 or 3")
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            (key,) = self._strings(1)
            self.metadata[key] = self._value(*self._take("I"))
        entries: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(tensors):
            (name,) = self._strings(1)
            (dimensions,) = self._take("I")
            shape = self._take(f"{dimensions}Q")[::-1]
            entries.append((name, shape, *self._take("IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int:
            raise TypeError(f"general.alignment is {alignment!r}, not an integer")
        start = alignment * math.ceil(self._at / alignment)
        self.tensors: dict[str, _Tensor] = {
            name: self._checked(name, shape, kind, start + offset) for name, shape, kind, offset in entries
        }

    def _checked(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> _Tensor:
        """The entry of a tensor that can be read."""
        stored = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[stored]
        if not shape or shape[-1] % block or 0 in shape:
            raise ValueError(f"{name} is of the shape {list(shape)}, in blocks of {block}")
        try:
            if stored.name not in _FLOAT_TYPES:
                dequantize(np.zeros((1, size), np.uint8), stored)
        except NotImplementedError:
            raise UnusableError(f"{name} is of the type {stored.name}, which cannot be dequantised") from None
        entry = _Tensor(shape, stored, offset, math.prod(shape) // block * size)
        if offset + entry.size > len(self._data):
            raise ValueError(f"it is truncated: {name} ends behind its end, at {offset + entry.size} bytes")
        return entry

    def _take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._data, self._at)
        self._at += struct.calcsize(f"<{layout}")
        return values

    def _strings(self, count: int) -> list[str]:
        """Strings, each behind its length. In one loop, since a vocabulary and its merges are 300,000."""
        strings: list[str] = []
        data = self._data
        end = self._at
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(data, end)
            start = end + _LENGTH.size
            end = start + size
            if end > len(data):
                raise ValueError("it is truncated")
            # Some writers put Latin-1 into descriptions, which nobody reads here.
            strings.append(data[start:end].decode(errors="surrogateescape"))
        self._at = end
        return strings

    def _value(self, number: int) -> Any:
        kind = GGUFValueType(number)
        if kind is GGUFValueType.STRING:
            return self._strings(1)[0]
        if kind is not GGUFValueType.ARRAY:
            return self._numbers(kind, 1)[0]
        element, count = self._take("IQ")
        if element == GGUFValueType.STRING:
            return self._strings(count)
        if element == GGUFValueType.ARRAY:
            raise ValueError("it has arrays of arrays in its metadata")
        return self._numbers(GGUFValueType(element), count)

    def _numbers(self, kind: GGUFValueType, count: int) -> list[Any]:
        dtype = np.dtype(kind.name.lower()).newbyteorder("<")  # uint8, float32, bool, ...
        values = np.frombuffer(self._data, dtype, count, self._at).tolist()
        self._at += count * dtype.itemsize
        return values


def _raw_config(
    metadata: Mapping[str, Any], tensors: Mapping[str, _Tensor], data: mmap.mmap
) -> dict[str, Any]:
    """The metadata in the form of a config.json; UnusableError for what the engine does not compute."""
    prefix = metadata["general.architecture"]
    if prefix not in _ARCHITECTURES:
        raise UnusableError(f"general.architecture is {prefix!r}, not one of {', '.join(_ARCHITECTURES)}")
    if metadata.get("split.count", 1) > 1:
        raise UnusableError("it is one of several files (split.count): merge them with llama-gguf-split")
    of_model = {key.removeprefix(f"{prefix}."): value for key, value in metadata.items()}
    sizes = {ours: of_model[theirs] for ours, theirs in _SIZES.items()}
    sizes |= {ours: of_model[theirs] for ours, theirs in _FURTHER_SIZES.items() if theirs in of_model}
    positions = sizes["max_position_embeddings"]
    head_dim = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
    computed: dict[str, Any] = {  # other values would mean what the engine does not compute
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.scaling.attn_factor": 1.0,
        "expert_count": 0,
        "attention.causal": True,
    }
    for key, value in computed.items():
        if (stored := of_model.get(key, value)) != value:
            raise UnusableError(f"{prefix}.{key} is {stored}, not {value}")
    if (of_model.get("attention.sliding_window") or positions) < positions:
        raise UnusableError(f"it uses a sliding window ({prefix}.attention.sliding_window)")
    raw: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[prefix]],
        "model_type": prefix,
        "hidden_act": "silu",
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        **sizes,
    }
    # As llama.cpp reads them: a factor without a type is linear, and older files have another name for it.
    factor = of_model.get("rope.scaling.factor") or of_model.get("rope.scale_linear")
    kind = of_model.get("rope.scaling.type", "linear" if factor else "none")
    if kind != "none":
        raw["rope_scaling"] = {"rope_type": kind, "factor": factor}
    if (entry := tensors.get(_ROPE_DIVISORS)) is not None:
        # The divisors that Llama 3.1's scaling comes to; a config.json can list them as "longrope".
        if kind != "none":
            raise UnusableError(f"it has {_ROPE_DIVISORS} beside other scaling")
        if len(entry.shape) != 1 or entry.shape[0] > _MOST_DIVISORS:  # before they take memory
            raise UnusableError(f"{_ROPE_DIVISORS} has the shape {entry.shape}")
        divisors = [*map(float, _values(data, entry))]
        lists = {"long_factor": divisors, "short_factor": divisors}
        fixed = {"attention_factor": 1.0, "original_max_position_embeddings": positions}
        raw["rope_scaling"] = {"rope_type": "longrope", **lists, **fixed}
    return raw


# The tokenizer --------------------------------------------------------------------------------------------

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # types of tokens
_UNSIGNED_NONE = 2**31  # a larger id is a negative number, for "none", that was written without a sign

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_CUTS: dict[str, tuple[str | None, bool]] = {
    # the expression that cuts a text before it is merged; True if GPT-2's cuts the parts again
    "gpt-2": (None, True),
    "smollm": (r"\p{N}", True),
    "llama-bpe": (_LLAMA3, False),
    "llama3": (_LLAMA3, False),
    "llama-v3": (_LLAMA3, False),
    "qwen2": (_QWEN2, False),
    "deepseek-r1-qwen": (_QWEN2, False),
}

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")
"""Tokens that end a text or a turn, whichever of them the metadata name."""


def _tokenizer_files(metadata: Mapping[str, Any]) -> TokenizerFiles:
    """The tokenizer and the chat template, in the form of Hugging Face's files.

    Raises:
        LookupError, TypeError, ValueError: A key is missing or malformed, an id is outside the vocabulary, or
            the tokenizer is no byte-level BPE that cuts texts as GPT-2, SmolLM, Llama 3 or Qwen2 do.
    """
    given = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if (kind := given["model"]) != "gpt2":
        raise UnusableError(
            f"its tokenizer is of the kind {kind!r}; only 'gpt2', byte-level BPE, is supported"
        )
    if (cut := given.get("pre")) not in _CUTS:
        raise UnusableError(f"its pre-tokenizer is {cut!r}, not one of {', '.join(_CUTS)}")
    tokens: list[str] = given["tokens"]
    kinds = dict(zip(tokens, given["token_type"], strict=True))
    ids = {token: i for i, token in enumerate(tokens)}
    special = {name: _special_id(given, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    ends = [special["eos"], special["eot"], special["eom"]]
    ends += [ids[token] for token in _ENDS if kinds.get(token) == _CONTROL]
    begin = special["bos"]
    config = {f"{name}_token": tokens[i] for name in ("bos", "eos") if (i := special[name]) is not None}
    expression, gpt2 = _CUTS[cut]
    llama3 = expression is _LLAMA3
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": gpt2}
    found_whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer: dict[str, Any] = {
        "model": {
            "type": "BPE",
            "vocab": {token: i for token, i in ids.items() if kinds[token] != _UNUSED},
            "merges": given["merges"],
            "ignore_merges": llama3,
        },
        "added_tokens": [  # found in a text as they are, before it is cut
            {"id": ids[token], "content": token, "special": kind != _USER_DEFINED, **found_whole}
            for token, kind in kinds.items()
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if cut == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_] if expression else [bytes_]},
        "post_processor": None,
        "decoder": bytes_,
    }
    if begin is not None and given.get("add_bos_token", llama3):
        tokenizer["post_processor"] = _opening(begin, tokens[begin])
    end_ids = tuple(dict.fromkeys(i for i in ends if i is not None))
    return TokenizerFiles(tokenizer, config, metadata.get("tokenizer.chat_template"), end_ids)


def _special_id(given: Mapping[str, Any], name: str, tokens: int) -> int | None:
    """The id of a special token; None if there is none, which some writers say with -1."""
    token = given.get(f"{name}_token_id")
    if token is None or token < 0 or token >= _UNSIGNED_NONE:
        return None
    if token >= tokens:
        raise ValueError(f"{name}_token_id is {token}, and there are {tokens} tokens")
    return token


def _opening(begin: int, token: str) -> dict[str, Any]:
    """The part of a tokenizer.json that puts a token before every text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, other],
        "special_tokens": {token: {"id": token, "ids": [begin], "tokens": [token]}},
    }
