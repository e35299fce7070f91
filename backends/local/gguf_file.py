"""GGUF files: read where they are, tensor by tensor.

The header is read and checked as a whole when a file is opened: architecture, sizes, names and shapes of the
tensors. Tensors that are quantised become float32 as they are read; others keep their type.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFValueType,
    dequantize,
    get_tensor_name_map,
)

from pasta_async.backends.local.checkpoint import (
    Checkpoint,
    ModelConfig,
    TokenizerFiles,
    compare_shapes,
    expected_shapes,
    model_config,
)
from pasta_async.errors import UnsupportedModelError

_BLOCK = 2**17  # weights that are dequantised at a time: they stay in the processor's cache
_NONE = 2**31  # a larger id is a negative number, for "none", that was written without a sign

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SIZES = {  # key of a config.json: key of a GGUF file, behind the architecture; True if it must be there
    "hidden_size": ("embedding_length", True),
    "intermediate_size": ("feed_forward_length", True),
    "max_position_embeddings": ("context_length", True),
    "num_attention_heads": ("attention.head_count", True),
    "num_hidden_layers": ("block_count", True),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", True),
    "num_key_value_heads": ("attention.head_count_kv", False),
    "head_dim": ("attention.key_length", False),
    "rope_theta": ("rope.freq_base", False),
}
_ROPE_DIVISORS = "rope_freqs.weight"
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class _Tensor(NamedTuple):
    shape: tuple[int, ...]  # `[out, in]` for matrices
    kind: GGMLQuantizationType
    offset: int
    size: int  # bytes


class GGUFFile(Checkpoint):
    """A GGUF file: what its header says, in Hugging Face's terms, and its tensors.

    Raises:
        UnsupportedModelError: It is no whole GGUF file of version 2 or 3, of a Llama, Qwen2 or Qwen3 model
            that the engine computes, or has tensors of a type that the `gguf` package cannot dequantise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Header, tensor entries and configuration: anything wrong in them is told as one kind of error.
            with path.open("rb") as file:  # torch wants memory that could be written to
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            header = _Header(self._data)
            self._metadata: dict[str, Any] = header.metadata
            self._prefix: Any = self._metadata.get("general.architecture")
            self._tensors = {entry[0]: self._checked(*entry) for entry in header.tensors()}
            raw = self._raw_config()
            self.config: ModelConfig = model_config(raw, path)
        except (OSError, ValueError, TypeError, ArithmeticError, LookupError, struct.error) as error:
            raise UnsupportedModelError(f"{path} is not a readable GGUF file: {error}") from error
        # GGUF has names of its own for tensors: the shapes are compared under Hugging Face's.
        architecture = MODEL_ARCH[self._prefix.upper()]
        names = get_tensor_name_map(architecture, self.config.layers)
        expected = expected_shapes(self.config)
        self._names = {name: names.get_name(name, (".weight", ".bias")) or name for name in expected}
        our_names = {theirs: name for name, theirs in self._names.items()}
        shapes = {our_names.get(name, name): entry.shape for name, entry in self._tensors.items()}
        shapes.pop(_ROPE_DIVISORS, None)
        compare_shapes(path, expected, shapes)
        with self._of_the_tokenizer():
            self._vocabulary = _Vocabulary(self._metadata)
            self.raw: dict[str, Any] = raw | self._vocabulary.special_ids()

    def sources(self) -> tuple[Path, ...]:
        """See `Checkpoint`."""
        return (self.path,)

    def tokenizer_files(self) -> TokenizerFiles:
        """See `Checkpoint`."""
        with self._of_the_tokenizer():
            return self._vocabulary.files()

    @contextmanager
    def _of_the_tokenizer(self) -> Generator[None]:
        """Turn errors of malformed tokenizer metadata into an `UnsupportedModelError`."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnsupportedModelError(f"{self.path}: its tokenizer cannot be used: {error!r}") from error

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint`; float types are the file's own pages, others become float32."""
        values = self._values(self._tensors[self._names[name]])
        part = name.rsplit(".", 2)[-2]
        if self.config.architecture == "LlamaForCausalLM" and part in ("q_proj", "k_proj"):
            return _halves(values, self.config.head_dim)
        return values

    def _checked(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> _Tensor:
        """The entry of a tensor that can be read (`ValueError`: it cannot)."""
        stored = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[stored]
        if not shape or shape[-1] % block or 0 in shape:
            raise ValueError(f"{name} is of the shape {list(shape)}, in blocks of {block}")
        try:
            if stored.name not in _FLOATS:
                dequantize(np.zeros((1, size), np.uint8), stored)
        except NotImplementedError:
            raise ValueError(f"{name} is of the type {stored.name}, which cannot be dequantised") from None
        entry = _Tensor(shape, stored, offset, math.prod(shape) // block * size)
        if offset + entry.size > len(self._data):
            raise ValueError(f"it is truncated: {name} ends behind its end, at {offset + entry.size} bytes")
        return entry

    def _values(self, entry: _Tensor) -> torch.Tensor:
        """A tensor's numbers: float types where they lie in the file, others dequantised to float32."""
        data, start = self._data, entry.offset
        count = math.prod(entry.shape)
        if (dtype := _FLOATS.get(entry.kind.name)) is not None:
            return torch.frombuffer(data, dtype=dtype, count=count, offset=start).view(entry.shape)
        block, size = GGML_QUANT_SIZES[entry.kind]
        raw = np.frombuffer(data, np.uint8, entry.size, start)
        values = np.empty(count, np.float32)
        step = _BLOCK // block
        for first in range(0, entry.size // size, step):
            part = raw[first * size : (first + step) * size]
            values[first * block : (first + step) * block] = dequantize(part[None], entry.kind)[0]
        self._let_go(entry)
        return torch.as_tensor(values).view(entry.shape)

    def _let_go(self, entry: _Tensor) -> None:
        """Give a tensor's pages back to the system: those of all tensors are as large as the file."""
        if sys.platform == "linux":
            first = entry.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._data.madvise(mmap.MADV_DONTNEED, first, entry.offset + entry.size - first)

    def _raw_config(self) -> dict[str, Any]:
        """The metadata in the form of a config.json, without the ids of special tokens."""
        meta, tensors = self._metadata, self._tensors
        prefix = self._prefix
        if prefix not in _ARCHITECTURES:
            raise ValueError(f"general.architecture is {prefix!r}, not one of {', '.join(_ARCHITECTURES)}")
        if meta.get("split.count", 1) > 1:
            raise ValueError("it is one of several files (split.count): merge them with llama-gguf-split")
        if missing := [f"{prefix}.{key}" for key, must in _SIZES.values() if must and not self._has(key)]:
            raise ValueError(f"its metadata lacks {', '.join(missing)}")
        if "token_embd.weight" not in tensors:
            raise ValueError("it has no token_embd.weight")
        sizes = {ours: self._number(theirs) for ours, (theirs, _) in _SIZES.items() if self._has(theirs)}
        head_dim = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
        self._refuse_extras(head_dim, sizes["max_position_embeddings"])
        return {
            "architectures": [_ARCHITECTURES[prefix]],
            "model_type": prefix,
            "hidden_act": "silu",
            "vocab_size": tensors["token_embd.weight"].shape[0],
            "tie_word_embeddings": "output.weight" not in tensors,
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
            **sizes,
            **self._rope_scaling(sizes["max_position_embeddings"]),
        }

    def _has(self, key: str) -> bool:
        return f"{self._prefix}.{key}" in self._metadata

    def _get(self, key: str, default: Any = None) -> Any:
        """The value of a key below the architecture's name."""
        return self._metadata.get(f"{self._prefix}.{key}", default)

    def _number(self, key: str) -> Any:
        """A positive number. Some writers store one for each layer: then all must be the same."""
        value = self._get(key)
        layers: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
        number = layers[0] if len({*layers}) == 1 else None
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ValueError(f"{self._prefix}.{key} must be a positive number, not {value!r:.80}")
        return number

    def _refuse_extras(self, head_dim: int, positions: int) -> None:
        """Refuse settings that the engine does not compute (`ValueError`)."""
        plain: dict[str, Any] = {
            "attention.value_length": head_dim,
            "rope.dimension_count": head_dim,
            "rope.scaling.attn_factor": 1.0,
            "expert_count": 0,
            "attention.causal": True,
        }
        for key, value in plain.items():
            if (stored := self._get(key, value)) != value:
                raise ValueError(f"{self._prefix}.{key} is {stored}, not {value}")
        if (self._get("attention.sliding_window") or positions) < positions:
            raise ValueError(f"it uses a sliding window ({self._prefix}.attention.sliding_window)")

    def _rope_scaling(self, positions: int) -> dict[str, Any]:
        """`rope_scaling` as a config.json has it; empty if nothing is scaled."""
        kind = self._get("rope.scaling.type", "none")
        factor = self._get("rope.scaling.factor")
        scaling: dict[str, Any] = {} if kind == "none" else {"rope_type": kind, "factor": factor}
        if (entry := self._tensors.get(_ROPE_DIVISORS)) is not None:
            # The divisors that Llama 3.1's scaling comes to; a config.json can list them as "longrope".
            if scaling:
                raise ValueError(f"it has {_ROPE_DIVISORS} beside other scaling")
            divisors = [*map(float, self._values(entry))]
            scaling = {"rope_type": "longrope", "long_factor": divisors, "short_factor": divisors}
            scaling |= {"attention_factor": 1.0, "original_max_position_embeddings": positions}
        return {"rope_scaling": scaling} if scaling else {}


class _Header:
    """Reads the header of a file. The `gguf` package's reader takes half a minute for 150,000 tokens."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0  # the byte to read next
        magic, version = self._take("4sI")
        if magic != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if version & 0xFFFF == 0:
            raise ValueError("it is big-endian")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, not 2 or 3")
        self._tensors, count = self._take("QQ")
        self.metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            self.metadata[key] = self._value(*self._take("I"))

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
        """Name, shape, type and place of each tensor."""
        entries: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(self._tensors):
            name = self._string()
            shape = self._take(f"{self._take('I')[0]}Q")[::-1]
            entries.append((name, shape, *self._take("IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self._at // alignment) * alignment
        return ((name, shape, kind, start + offset) for name, shape, kind, offset in entries)

    def _take(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        # Some writers put Latin-1 into descriptions, which nobody reads here.
        return self._bytes(*self._take("Q")).decode(errors="surrogateescape")

    def _strings(self, count: int) -> list[str]:
        """Many strings, read in one loop: a vocabulary has 150,000, and as many merges."""
        data, at, end = self._data, self._at, len(self._data)
        length = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(count):
            start = at + 8
            at = start + length(data, at)[0]
            if at > end:
                raise ValueError("it is truncated")
            strings.append(data[start:at].decode(errors="surrogateescape"))
        self._at = at
        return strings

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("it is truncated")
        self._at += size
        return self._data[self._at - size : self._at]

    def _value(self, number: int) -> Any:
        kind = GGUFValueType(number)
        if kind is GGUFValueType.STRING:
            return self._string()
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
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype).tolist()


def _halves(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows `[heads * head_dim, ...]` from GGUF's order (pairs rotate) to Hugging Face's (halves do)."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


# The tokenizer --------------------------------------------------------------------------------------------

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # types of tokens

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


class _Vocabulary:
    """The tokenizer that a GGUF file's metadata describe.

    Raises:
        LookupError, TypeError, ValueError: A key is missing or malformed, or an id is outside the vocabulary.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        prefix = "tokenizer.ggml."
        self._given = {
            key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
        }
        self._tokens: list[str] = self._given["tokens"]
        self._bos, *ends = (self._id(name) for name in ("bos", "eos", "eot", "eom"))
        self._kinds: list[int] = self._given["token_type"]
        if len(self._kinds) < len(self._tokens):
            raise ValueError(f"token_type has {len(self._kinds)} entries for {len(self._tokens)} tokens")
        control = {token: i for i, token in enumerate(self._tokens) if self._kinds[i] == _CONTROL}
        named = (*ends, *map(control.get, _ENDS))
        self._end_ids = tuple(dict.fromkeys(i for i in named if i is not None))
        self._template: str | None = metadata.get("tokenizer.chat_template")

    def files(self) -> TokenizerFiles:
        """The tokenizer and the chat template, in the form of Hugging Face's files.

        Raises:
            KeyError: A key is missing.
            ValueError: The tokenizer is no byte-level BPE, or cuts texts in another way than GPT-2, SmolLM,
                Llama 3 or Qwen2.
        """
        if (kind := self._given["model"]) != "gpt2":
            raise ValueError(f"it is of the kind {kind!r}; only 'gpt2', byte-level BPE, is supported")
        ids = {"bos": self._bos, "eos": self._id("eos"), "pad": self._id("padding")}
        config: dict[str, Any] = {
            f"{name}_token": self._tokens[token] for name, token in ids.items() if token is not None
        }
        return TokenizerFiles(self._byte_level(), config, self._template, self._end_ids)

    def special_ids(self) -> dict[str, int]:
        """Ids as a config.json has them."""
        ids = {"bos": self._bos, "eos": self._id("eos"), "pad": self._id("padding")}
        return {f"{name}_token_id": token for name, token in ids.items() if token is not None}

    def _id(self, name: str) -> int | None:
        """The id of a special token; None if there is none, which some writers say with -1."""
        token = self._given.get(f"{name}_token_id")
        if token is None or token < 0 or token >= _NONE:
            return None
        if token < len(self._tokens):
            return token
        if name == "padding":  # unused here, so no reason to refuse a model
            return None
        raise ValueError(f"{name}_token_id is {token}, and there are {len(self._tokens)} tokens")

    def _byte_level(self) -> dict[str, Any]:
        """`tokenizer.json` of a byte-level tokenizer, GPT-2's kind."""
        kind = self._given["pre"]
        if kind not in _CUTS:
            raise ValueError(f"its pre-tokenizer is {kind!r}, not one of {', '.join(_CUTS)}")
        cut, gpt2 = _CUTS[kind]
        llama3 = cut is _LLAMA3
        split = {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
        bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": gpt2}
        return {
            "model": {
                "type": "BPE",
                "vocab": self._by_text(),
                "merges": [tuple(merge.split(" ")) for merge in self._given["merges"]],
                "ignore_merges": llama3,
            },
            "added_tokens": self._added(),
            "normalizer": {"type": "NFC"} if kind == "qwen2" else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_] if cut else [bytes_]},
            "post_processor": self._opening(default=llama3),
            "decoder": bytes_,
        }

    def _by_text(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self._tokens) if self._kinds[i] != _UNUSED}

    def _added(self) -> list[dict[str, Any]]:
        """Tokens that are found in a text as they are, before it is cut."""
        rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        kinds = zip(self._tokens, self._kinds, strict=False)
        return [
            {"id": i, "content": token, "special": kind != _USER_DEFINED, **rest}
            for i, (token, kind) in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]

    def _opening(self, *, default: bool) -> dict[str, Any] | None:
        """The beginning-of-text token, where texts have one."""
        if self._bos is None or not self._given.get("add_bos_token", default):
            return None
        token = self._tokens[self._bos]
        first = {"SpecialToken": {"id": token, "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        other = {"Sequence": {"id": "B", "type_id": 0}}
        return {
            "type": "TemplateProcessing",
            "single": [first, text],
            "pair": [first, text, other],
            "special_tokens": {token: {"id": token, "ids": [self._bos], "tokens": [token]}},
        }
