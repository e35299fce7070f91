"""Read a checkpoint's `config.json`, and refuse what the embedded engine cannot compute."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pasta_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Llama3Rope", "ModelConfig", "read_config", "read_json"]

_REFUSAL = "the embedded engine does not support it. SGLang may."
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1's stretching of the low rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only model of the Llama family."""

    architecture: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    positions: int
    """Most positions the model was made for (`max_position_embeddings`)."""
    rope_theta: float
    rope_scaling: Llama3Rope | None
    tied: bool
    """Whether the output layer is the embedding."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Whether queries and keys are normalised for each head (Qwen3)."""

    def inverse_frequencies(self) -> list[float]:
        """Rotary frequencies, one for each pair of a head's components."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-i / half) for i in range(half)]
        return plain if self.rope_scaling is None else [_stretch(f, self.rope_scaling) for f in plain]


def read_config(folder: Path, refusal: str = _REFUSAL) -> ModelConfig:
    """Read and check `config.json` of a checkpoint folder.

    Args:
        folder: The checkpoint folder.
        refusal: How a message goes on about what is not supported.

    Raises:
        UnsupportedModelError: The folder or file is missing or malformed, or the model needs something else
            than Llama, Qwen2 or Qwen3 with full attention, unquantised weights, plain or Llama 3
            rotary positions.
    """
    return _Reader(folder, read_json(folder / "config.json"), refusal).config()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UnsupportedModelError: It is missing, is not JSON, or holds something else.
    """
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedModelError(
            f"{path} is missing: name a checkpoint folder with config.json in it"
        ) from None
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", value)


class _Reader:
    """Takes values out of a config, naming the file and the key when one is wrong."""

    def __init__(self, folder: Path, raw: dict[str, Any], refusal: str) -> None:
        self.path = folder / "config.json"
        self.raw = raw
        self.refusal = refusal

    def refuse(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.path}: {why}; {self.refusal}")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key)
        value = default if value is None else value
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise UnsupportedModelError(f"{self.path}: {key} must be a positive number, not {value!r}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value):
            raise UnsupportedModelError(f"{self.path}: {key} must be an integer, not {value!r}")
        return int(value)

    def config(self) -> ModelConfig:
        architecture = self.architecture()
        self.refuse_extras()
        heads = self.integer("num_attention_heads")
        hidden = self.integer("hidden_size")
        kv_heads = self.integer("num_key_value_heads", heads)
        head_dim = self.integer("head_dim", max(hidden // heads, 1))
        if heads % kv_heads:
            raise UnsupportedModelError(f"{self.path}: {heads} heads cannot share {kv_heads} key-value heads")
        if head_dim % 2:
            raise self.refuse(f"head_dim {head_dim} is odd")
        llama, bias = architecture == "LlamaForCausalLM", bool(self.raw.get("attention_bias", False))
        theta, scaling = self.rope()
        return ModelConfig(
            architecture=architecture,
            vocab_size=self.integer("vocab_size"),
            hidden=hidden,
            layers=self.integer("num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=self.integer("intermediate_size"),
            norm_eps=self.number("rms_norm_eps", 1e-6),
            positions=self.integer("max_position_embeddings", 2048),
            rope_theta=theta,
            rope_scaling=scaling,
            tied=bool(self.raw.get("tie_word_embeddings", False)),
            qkv_bias=bias or architecture == "Qwen2ForCausalLM",
            out_bias=bias and architecture != "Qwen2ForCausalLM",
            mlp_bias=llama and bool(self.raw.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
        )

    def architecture(self) -> str:
        names: list[str] = self.raw.get("architectures") or []
        if len(names) != 1 or names[0] not in ARCHITECTURES:
            raise self.refuse(f"architectures is {names}, not one of {', '.join(ARCHITECTURES)}")
        return names[0]

    def refuse_extras(self) -> None:
        raw = self.raw
        if raw.get("quantization_config"):
            raise self.refuse("the weights are quantised (quantization_config)")
        kinds = set(raw.get("layer_types") or ()) - {"full_attention"}
        if kinds:
            raise self.refuse(f"layer_types has {', '.join(sorted(map(str, kinds)))}")
        if raw.get("use_sliding_window"):
            raise self.refuse("it uses a sliding window (use_sliding_window)")
        if raw.get("hidden_act", "silu") != "silu":
            raise self.refuse(f"hidden_act is {raw['hidden_act']!r}, not 'silu'")

    def rope(self) -> tuple[float, Llama3Rope | None]:
        """Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters`."""
        nested: dict[str, Any] = self.raw.get("rope_parameters") or {}
        scaling: dict[str, Any] = nested or self.raw.get("rope_scaling") or {}
        reader = _Reader(self.path.parent, {**self.raw, **scaling}, self.refusal)
        theta = reader.number("rope_theta", 10000.0)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if reader.raw.get("partial_rotary_factor", 1.0) != 1.0:
            raise self.refuse("it rotates a part of each head only (partial_rotary_factor)")
        if kind == "default":
            return theta, None
        if kind != "llama3":
            raise self.refuse(f"rope_scaling is of type {kind!r}, not 'default' or 'llama3'")
        return theta, Llama3Rope(
            factor=reader.number("factor"),
            low_freq_factor=reader.number("low_freq_factor"),
            high_freq_factor=reader.number("high_freq_factor"),
            original_positions=reader.integer("original_max_position_embeddings"),
        )


def _stretch(frequency: float, rope: Llama3Rope) -> float:
    """Divide low frequencies by the factor, keep high ones, blend between (as transformers does)."""
    wavelength = 2 * math.pi / frequency
    if wavelength < rope.original_positions / rope.high_freq_factor:
        return frequency
    if wavelength > rope.original_positions / rope.low_freq_factor:
        return frequency / rope.factor
    span = rope.high_freq_factor - rope.low_freq_factor
    blend = (rope.original_positions / wavelength - rope.low_freq_factor) / span
    return (1 - blend) * frequency / rope.factor + blend * frequency
