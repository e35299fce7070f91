"""Read GGUF files of Llama, Qwen2 and Qwen3: the header, the tokenizer, and tensors when they are taken."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
    ConfigReader,
    ModelConfig,
    compare_shapes,
    expected_shapes,
)
from pasta_async.backends.local.gguf_tokenizer import gguf_tokenizer
from pasta_async.backends.tokenization import TokenizerFiles
from pasta_async.errors import UnsupportedModelError

_BLOCK = 2**17  # weights that are dequantised at a time: they stay in the processor's cache

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_KEYS = {  # of a config.json, and of a GGUF file, behind the architecture
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
}
_REQUIRED = 6  # the first of these
_ROPE_DIVISORS = "rope_freqs.weight"
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class _Tensor(NamedTuple):
    shape: tuple[int, ...]  # `[out, in]` for matrices
    kind: GGMLQuantizationType
    offset: int
    size: int  # bytes


class GGUFFile(Checkpoint):
    """A GGUF file as a checkpoint. Its header is read and checked at once, tensors when they are taken.

    Raises:
        UnsupportedModelError: It is no whole GGUF file of version 2 or 3, of a Llama, Qwen2 or Qwen3 model
            that the engine computes, or has tensors of a type that the `gguf` package cannot dequantise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:  # torch wants what could be written to
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            header = _Header(self._data)
            self.metadata: dict[str, Any] = header.metadata
            self._tensors = {entry[0]: self._checked(*entry) for entry in header.tensors()}
            self.raw: dict[str, Any] = {}
            self.config: ModelConfig = self._config()
        except (OSError, ValueError, TypeError, ArithmeticError, LookupError, struct.error) as error:
            raise UnsupportedModelError(f"{path} is not a readable GGUF file: {error}") from error
        architecture = MODEL_ARCH[self.metadata["general.architecture"].upper()]
        names = get_tensor_name_map(architecture, self.config.layers)
        expected = expected_shapes(self.config)
        self._names = {name: names.get_name(name, (".weight", ".bias")) or name for name in expected}
        known = {theirs: name for name, theirs in self._names.items()}
        shapes = {known.get(name, name): entry.shape for name, entry in self._tensors.items()}
        shapes.pop(_ROPE_DIVISORS, None)
        compare_shapes(path, expected, shapes)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its Hugging Face name; float types are the file's own pages, others become float32."""
        values = self._values(self._tensors[self._names[name]])
        part = name.rsplit(".", 2)[-2]
        if self.config.architecture == "LlamaForCausalLM" and part in ("q_proj", "k_proj"):
            return _halves(values, self.config.head_dim)
        return values

    def tokenizer(self) -> TokenizerFiles:
        """See `Checkpoint`; Hugging Face's own tokenizer, made of the metadata."""
        try:
            return gguf_tokenizer(self.metadata)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UnsupportedModelError(f"{self.path}: its tokenizer cannot be used: {error!r}") from error

    def _checked(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> _Tensor:
        found = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[found]
        if not shape or shape[-1] % block or 0 in shape:
            raise ValueError(f"{name} is of the shape {list(shape)}, in blocks of {block}")
        try:
            dequantize(np.zeros((1, size), np.uint8), found)
        except NotImplementedError:
            raise ValueError(f"{name} is of the type {found.name}, which cannot be dequantised") from None
        entry = _Tensor(shape, found, offset, math.prod(shape) // block * size)
        if offset + entry.size > len(self._data):
            raise ValueError(f"it is truncated: {name} ends behind its end, at {offset + entry.size} bytes")
        return entry

    def _values(self, entry: _Tensor) -> torch.Tensor:
        data, count, start = self._data, math.prod(entry.shape), entry.offset
        if (dtype := _FLOATS.get(entry.kind.name)) is not None:
            return torch.frombuffer(data, dtype=dtype, count=count, offset=start).view(entry.shape)
        block, size = GGML_QUANT_SIZES[entry.kind]
        raw = np.frombuffer(data, np.uint8, entry.size, start)
        values = np.empty(count, np.float32)
        step = _BLOCK // block
        for i in range(0, entry.size // size, step):
            part = raw[i * size : (i + step) * size]
            values[i * block : (i + step) * block] = dequantize(part[None], entry.kind)[0]
        return torch.as_tensor(values).view(entry.shape)

    def _config(self) -> ModelConfig:
        meta, tensors = self.metadata, self._tensors
        prefix = meta.get("general.architecture")
        keys = {ours: f"{prefix}.{theirs}" for ours, theirs in _KEYS.items()}
        raw: dict[str, Any] = {ours: meta.get(theirs) for ours, theirs in keys.items()}
        keys["vocab_size"] = "the number of rows of token_embd.weight"
        reader = ConfigReader(self.path, raw, keys=keys)
        if prefix not in _ARCHITECTURES:
            raise reader.refuse(f"general.architecture is {prefix!r}, not one of {', '.join(_ARCHITECTURES)}")
        if meta.get("split.count", 1) > 1:
            raise reader.refuse("it is one of several files (split.count): merge them with llama-gguf-split")
        if missing := [keys[key] for key in list(_KEYS)[:_REQUIRED] if raw[key] is None]:
            raise UnsupportedModelError(f"{self.path}: its metadata lacks {', '.join(missing)}")
        embedding = tensors.get("token_embd.weight")
        raw |= {
            "architectures": [_ARCHITECTURES[prefix]],
            "model_type": prefix,
            "hidden_act": "silu",
            "vocab_size": embedding and embedding.shape[0],
            "tie_word_embeddings": "output.weight" not in tensors,
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
            "rope_scaling": _rope_scaling(meta, prefix),
        }
        config = reader.config()
        self._refuse_extras(reader, config, prefix)
        self.raw = {key: value for key, value in raw.items() if value is not None} | _special_ids(meta)
        if (entry := tensors.get(_ROPE_DIVISORS)) is None:
            return config
        if entry.shape != (config.head_dim // 2,) or config.rope_divisors[0] != 1:
            raise reader.refuse(
                f"{_ROPE_DIVISORS} has {entry.shape[-1]} values beside other scaling, or too few"
            )
        return replace(config, rope_divisors=tuple(map(float, self._values(entry))))

    def _refuse_extras(self, reader: ConfigReader, config: ModelConfig, prefix: str) -> None:
        """Refuse what changes the computation in a way that the engine does not know."""
        plain: dict[str, Any] = {
            "attention.value_length": config.head_dim,
            "rope.dimension_count": config.head_dim,
            "rope.scaling.attn_factor": 1.0,
            "expert_count": 0,
            "attention.causal": True,
        }
        for key, value in plain.items():
            if (found := self.metadata.get(f"{prefix}.{key}", value)) != value:
                raise reader.refuse(f"{prefix}.{key} is {found}, not {value}")
        window = self.metadata.get(f"{prefix}.attention.sliding_window") or config.positions
        if window < config.positions:
            raise reader.refuse(f"it uses a sliding window ({prefix}.attention.sliding_window)")


class _Header:
    """Reads from the beginning of a file. The `gguf` package's own reader takes seconds for a vocabulary."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0
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
        found: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(self._tensors):
            name = self._string()
            shape = self._take(f"{self._take('I')[0]}Q")[::-1]
            found.append((name, shape, *self._take("IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self._at // alignment) * alignment
        return ((name, shape, kind, start + offset) for name, shape, kind, offset in found)

    def _take(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        return self._bytes(*self._take("Q")).decode()

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
            return self._take(_LAYOUTS[kind])[0]
        of, count = self._take("IQ")
        if of == GGUFValueType.STRING:
            return [self._string() for _ in range(count)]
        if of == GGUFValueType.ARRAY:
            raise ValueError("it has arrays of arrays in its metadata")
        layout = np.dtype("<" + _LAYOUTS[GGUFValueType(of)])
        return np.frombuffer(self._bytes(count * layout.itemsize), layout).tolist()


_LAYOUTS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


def _special_ids(metadata: dict[str, Any]) -> dict[str, int | None]:
    """As a config.json has them."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {ours: metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
    return {f"{name}_token_id": token for name, token in ids.items()}


def _rope_scaling(metadata: dict[str, Any], prefix: str) -> dict[str, Any] | None:
    """As a config.json has it."""
    kind = metadata.get(f"{prefix}.rope.scaling.type", "none")
    factor = metadata.get(f"{prefix}.rope.scaling.factor")
    if f"{prefix}.rope.scale_linear" in metadata:  # older files
        kind, factor = "linear", metadata[f"{prefix}.rope.scale_linear"]
    return None if kind == "none" else {"rope_type": kind, "factor": factor}


def _halves(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows `[heads * head_dim, ...]`, rotated in pairs, in the order in which halves of heads are rotated."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
