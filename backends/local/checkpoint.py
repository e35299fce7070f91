"""Models that can be loaded, and folders in Hugging Face's layout: their shape, weights and tokenizer.

Model files are not trusted. Config and weights are checked when a model is opened, before memory is taken,
the tokenizer and `generation_config.json` when they are read;
weights are safetensors alone; a model that the embedded engine cannot compute is refused with the reason.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt
from safetensors import SafetensorError, safe_open

from pasta_async.errors import UnsupportedModelError
from pasta_async.model_folder import File, GenerationDefaults, TokenizerFiles, read_object, validated
from pasta_async.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch


Read: TypeAlias = "Callable[[str], torch.Tensor]"
"""Gives a tensor for its Hugging Face name, of any floating type."""

_REFUSAL = "neither the embedded engine nor the training supports it; SGLang may"
_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FLOAT_TYPES = ("F64", "F32", "F16", "BF16")


# The shape ------------------------------------------------------------------------------------------------


class ModelConfig(File):
    """The shape of a decoder-only model of the Llama family. Limits exceed every model there is."""

    architecture: str
    vocab_size: PositiveInt
    hidden: PositiveInt = Field(validation_alias="hidden_size")
    layers: int = Field(validation_alias="num_hidden_layers", gt=0, le=1000)
    heads: PositiveInt = Field(validation_alias="num_attention_heads")
    kv_heads: PositiveInt = Field(validation_alias="num_key_value_heads")
    head_dim: int = Field(gt=0, le=1024, multiple_of=2)
    intermediate: PositiveInt = Field(validation_alias="intermediate_size")
    norm_eps: PositiveFloat = Field(default=1e-6, validation_alias="rms_norm_eps")
    positions: PositiveInt = Field(default=2048, validation_alias="max_position_embeddings")
    """Most positions the model was made for."""
    tied: bool = Field(default=False, validation_alias="tie_word_embeddings")
    """True if the output layer is the embedding."""
    rope_theta: float = 10000.0
    rope_divisors: tuple[float, ...] = ()
    """The divisor of each rotary frequency; 1 where nothing is stretched."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """True if queries and keys are normalised for each head (Qwen3)."""

    def rotations(self, positions: int) -> NDArray[np.float32]:
        """Cosine and sine of `position * frequency`, `[positions, head_dim / 2, 2]`."""
        plain = _frequencies(self.rope_theta, self.head_dim // 2)
        divided = [frequency / divisor for frequency, divisor in zip(plain, self.rope_divisors, strict=True)]
        frequencies = np.array(divided, np.float32)
        angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies  # rounded as transformers does
        turns = np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)
        return np.stack(turns, -1).astype(np.float32)


class _Rope(File):
    """Rotary positions as they are. Subclasses stretch them: each frequency is divided by a number."""

    rope_theta: float = Field(default=10000.0, ge=1)
    partial_rotary_factor: Literal[1] = 1

    def divisors(self, half: int) -> tuple[float, ...]:
        """A number for each of the `half` frequencies."""
        return (1.0,) * half


class _LinearRope(_Rope):
    factor: PositiveFloat

    def divisors(self, half: int) -> tuple[float, ...]:
        return (self.factor,) * half


class _Llama3Rope(_LinearRope):
    original_max_position_embeddings: PositiveInt
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat

    def divisors(self, half: int) -> tuple[float, ...]:
        return tuple(map(self._divisor, _frequencies(self.rope_theta, half)))

    def _divisor(self, frequency: float) -> float:
        """The factor for low frequencies, 1 for high ones, blended between (as transformers does)."""
        low, high = self.low_freq_factor, self.high_freq_factor
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        return 1 / ((1 - blend) / self.factor + blend)


class _ListedRope(_Rope):
    """Divisors listed one by one; the embedded engine takes one list for every length of a context."""

    long_factor: tuple[PositiveFloat, ...]
    short_factor: tuple[PositiveFloat, ...]
    attention_factor: Literal[1]

    def divisors(self, half: int) -> tuple[float, ...]:
        if self.long_factor != self.short_factor or len(self.long_factor) != half:
            raise ValueError(f"long_factor and short_factor are not the same {half} numbers")
        return self.long_factor


_ROPES = {"default": _Rope, "linear": _LinearRope, "llama3": _Llama3Rope, "longrope": _ListedRope}


def model_config(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """The shape that a parsed config.json says; `path` is where it comes from.

    Raises:
        UnsupportedModelError: It is malformed, or the model needs something else than Llama, Qwen2 or Qwen3
            with full attention, unquantised weights, and rotary positions that are plain, divided by factors,
            or Llama 3's.
    """
    with well_formed(path):
        if reason := _unsupported(raw):
            raise UnsupportedModelError(f"{path}: {reason}; {_REFUSAL}")
        architecture = raw["architectures"][0]
        heads = raw.get("num_attention_heads")
        bias = bool(raw.get("attention_bias"))
        qwen2 = architecture == "Qwen2ForCausalLM"  # its queries, keys and values always have biases
        # Values that a file may leave out, then those that it has, then what the architecture decides.
        values = {"num_key_value_heads": heads}
        if heads and "hidden_size" in raw:
            values["head_dim"] = max(raw["hidden_size"] // heads, 1)
        given = {key: value for key, value in raw.items() if value is not None}
        values |= given
        values |= {
            "architecture": architecture,
            "qkv_bias": bias or qwen2,
            "out_bias": bias and not qwen2,
            "mlp_bias": architecture == "LlamaForCausalLM" and bool(raw.get("mlp_bias")),
            "qk_norm": architecture == "Qwen3ForCausalLM",
        }
        config = validated(ModelConfig, values, path)
        if config.heads % config.kv_heads:
            raise UnsupportedModelError(
                f"{path}: {config.heads} heads cannot share {config.kv_heads} key-value heads"
            )
        # transformers 5 writes `rope_parameters`; older files have `rope_scaling`, `rope_theta` beside it.
        scaling: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in _ROPES:
            raise UnsupportedModelError(f"{path}: rope_scaling is of type {kind!r}; {_REFUSAL}")
        rope = validated(_ROPES[kind], {**given, **scaling}, path)
        return config.model_copy(
            update={"rope_theta": rope.rope_theta, "rope_divisors": rope.divisors(config.head_dim // 2)}
        )


def _unsupported(raw: Mapping[str, Any]) -> str | None:
    """The reason why the engine cannot compute the model that a parsed config.json describes."""
    names: list[str] = raw.get("architectures") or []
    if len(names) != 1 or names[0] not in _ARCHITECTURES:
        return f"architectures is {names}, not one of {', '.join(_ARCHITECTURES)}"
    if raw.get("quantization_config"):
        return "the weights are quantised (quantization_config)"
    if kinds := set(raw.get("layer_types") or ()) - {"full_attention"}:
        return f"layer_types has {', '.join(sorted(map(str, kinds)))}"
    if raw.get("use_sliding_window"):
        return "it uses a sliding window (use_sliding_window)"
    if raw.get("hidden_act", "silu") != "silu":
        return f"hidden_act is {raw['hidden_act']!r}, not 'silu'"
    return None


def _frequencies(theta: float, half: int) -> list[float]:
    return [theta ** (-i / half) for i in range(half)]


# The folder -----------------------------------------------------------------------------------------------


@dataclass
class Checkpoint:
    """A model that can be loaded. Config and weights are checked as it is opened, before memory is taken."""

    path: Path
    raw: dict[str, Any]
    """The parsed config.json."""
    config: ModelConfig
    sources: tuple[Path, ...]
    """The files that the shape and the tensors come from."""
    tensor: Read
    tokenizer_files: Callable[[], TokenizerFiles]
    """Reads the tokenizer with the chat template, in the form of Hugging Face's files; raises an
    `UnsupportedModelError` if it is missing or malformed."""
    generation_file: Path
    """The generation_config.json, which need not be there."""

    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            UnsupportedModelError: It is missing, malformed, of a kind that is not supported, or has ids that
                the model has no rows for.
        """
        with well_formed(self.path):
            files = self.tokenizer_files()
        try:
            tokenizer = Tokenizer(files)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{self.path}: {error}") from error
        rows = self.config.vocab_size
        if tokenizer.vocab_size > rows:
            raise UnsupportedModelError(
                f"{self.path}: the tokenizer has {tokenizer.vocab_size} tokens, the model {rows}"
            )
        if outside := [token for token in tokenizer.end_ids if token >= rows]:
            raise UnsupportedModelError(
                f"{self.path}: eos_token_id is {outside[0]}, the model has {rows} tokens"
            )
        return tokenizer

    def generation_defaults(self) -> GenerationDefaults:
        """The model's default sampling.

        Raises:
            UnsupportedModelError: The file is malformed, the penalty not above 0 and at most 2, or an id not
                in the vocabulary.
        """
        defaults = GenerationDefaults.read(self.generation_file)
        if any(token >= self.config.vocab_size for token in defaults.suppress_tokens):
            raise UnsupportedModelError(
                f"{self.generation_file}: suppress_tokens has ids from {self.config.vocab_size} on"
            )
        return defaults


def open_folder(path: Path) -> Checkpoint:
    """Open a checkpoint in Hugging Face's layout: config.json, safetensors, tokenizer.json.

    Raises:
        UnsupportedModelError: `model_config` raises it; a file is missing or broken; or
            tensors are missing, unknown, of another shape than config.json says, or not of floating-point
            numbers.
    """
    raw = read_json(path / "config.json")
    config = model_config(raw, path / "config.json")
    with well_formed(path):
        weights = _weight_files(path)
    readers: dict[str, Read] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weights:
        read, in_file = open_safetensors(file)
        readers |= dict.fromkeys(in_file, read)
        shapes |= in_file
    if config.tied:  # some writers save it, though it is the embedding
        shapes.pop("lm_head.weight", None)
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith("rotary_emb.inv_freq")}
    compare_shapes(path, expected_shapes(config), shapes)
    return Checkpoint(
        path=path,
        raw=raw,
        config=config,
        sources=(path / "config.json", *weights),
        tensor=lambda name: readers[name](name),
        tokenizer_files=partial(TokenizerFiles.read, path),
        generation_file=path / "generation_config.json",
    )


_MALFORMED = (OSError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, struct.error)


class UnusableError(ValueError):
    """The reason not to use a file that is not malformed; for `well_formed`."""


@contextmanager
def well_formed(path: Path) -> Generator[None]:
    """Turn errors of reading a malformed or unusable file into an `UnsupportedModelError` that names it."""
    try:
        yield
    except UnusableError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    except _MALFORMED as error:
        raise UnsupportedModelError(f"{path} is malformed: {error!r:.300}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UnsupportedModelError: It is missing, is not JSON, or holds something else.
    """
    value = read_object(path)
    if value is None:
        raise UnsupportedModelError(f"{path} is missing: name a model folder with {path.name} in it")
    return value


def weight_count(config: ModelConfig) -> int:
    """The number of weights of a model of this shape."""
    return sum(map(math.prod, expected_shapes(config).values()))


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors a checkpoint must have: Hugging Face name -> shape (`[out, in]` for matrices)."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden),
        "model.norm.weight": (config.hidden,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden)
    for layer in range(config.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (queries, config.hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, config.hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, config.hidden, config.qkv_bias),
        "self_attn.o_proj": (config.hidden, queries, config.out_bias),
        "mlp.gate_proj": (config.intermediate, config.hidden, config.mlp_bias),
        "mlp.up_proj": (config.intermediate, config.hidden, config.mlp_bias),
        "mlp.down_proj": (config.hidden, config.intermediate, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (config.hidden,),
        "post_attention_layernorm.weight": (config.hidden,),
    }
    for name, (rows, columns, bias) in matrices.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _weight_files(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise UnsupportedModelError(
            f"{folder} has neither model.safetensors nor {index.name}: save the checkpoint as safetensors"
        )
    places: Mapping[str, str] = read_json(index).get("weight_map") or {}
    names = sorted(set(places.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise UnsupportedModelError(f"{index} names files that are not beside it: {', '.join(outside)}")
    paths = [folder / name for name in names]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise UnsupportedModelError(f"{index} names files that are missing: {', '.join(missing)}")
    return paths


def open_safetensors(path: Path) -> tuple[Read, dict[str, tuple[int, ...]]]:
    """Open a safetensors file.

    Returns a function that reads a tensor, and the shape of each. A tensor has the file's own pages, it is no
    copy. torch is imported when the first one is read.

    Raises:
        UnsupportedModelError: It is missing or broken, or a tensor is not of floating-point numbers.
    """
    open_file: Callable[..., Any] = safe_open
    try:
        header: Any = open_file(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise UnsupportedModelError(f"{path} is not a readable safetensors file: {error}") from error
    parts: dict[str, Any] = {name: header.get_slice(name) for name in header.keys()}
    for name, part in parts.items():
        if part.get_dtype() not in _FLOAT_TYPES:
            raise UnsupportedModelError(f"{path}: {name} is of type {part.get_dtype()}; {_REFUSAL}")

    @cache
    def opened() -> Any:
        return open_file(path, framework="pt", device="cpu")

    def read(name: str) -> torch.Tensor:
        return opened().get_tensor(name)

    return read, {name: tuple(part.get_shape()) for name, part in parts.items()}


def compare_shapes(
    path: Path, expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise an `UnsupportedModelError` that names tensors which are missing, unknown or of a wrong shape."""
    faults = {
        "missing tensors": [name for name in expected if name not in actual],
        "unknown tensors": [name for name in actual if name not in expected],
        "tensors of a wrong shape": [
            f"{name} is {list(actual[name])}, not {list(shape)}"
            for name, shape in expected.items()
            if actual.get(name, shape) != shape
        ],
    }
    for title, names in faults.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UnsupportedModelError(f"{path}: {title} for its config: {', '.join(names[:5])}{more}")
