"""Read a checkpoint folder (config.json, safetensors), and refuse what the embedded engine cannot compute."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from safetensors import SafetensorError, safe_open

from pasta_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import torch

__all__ = ["Llama3Rope", "ModelConfig", "expected_shapes", "load_weights", "read_config", "read_json"]

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


def load_weights(
    folder: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Every tensor of the model by its Hugging Face name, on `device`, as `dtype` (None: as it is stored).

    Raises:
        UnsupportedModelError: No safetensors file, a broken one, or tensors that are missing, unknown or of
            another shape than `config.json` says; the message names them.
    """
    shapes = expected_shapes(config)
    weights: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        for name, tensor in _read(path):
            if not _superfluous(name, config):
                weights[name] = tensor.to(device=device, dtype=dtype)
    _compare(folder, shapes, weights)
    return weights


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


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise UnsupportedModelError(
            f"{folder} has neither model.safetensors nor {index.name}: save the checkpoint as safetensors"
        )
    places: Mapping[str, str] = read_json(index).get("weight_map") or {}
    paths = [folder / name for name in sorted(set(places.values()))]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise UnsupportedModelError(f"{index} names files that are missing: {', '.join(missing)}")
    return paths


def _read(path: Path) -> Iterable[tuple[str, torch.Tensor]]:
    try:
        opened: Any = safe_open(path, framework="pt", device="cpu")
        with opened as file:
            for name in file.keys():
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise UnsupportedModelError(f"{path} is not a readable safetensors file: {error}") from error


def _superfluous(name: str, config: ModelConfig) -> bool:
    """Tensors that some writers save although they follow from others."""
    return name.endswith("rotary_emb.inv_freq") or (config.tied and name == "lm_head.weight")


def _compare(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, torch.Tensor]
) -> None:
    wrong = [
        f"{name} is {list(weights[name].shape)}, not {list(shape)}"
        for name, shape in shapes.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    for title, names in (
        ("missing tensors", [name for name in shapes if name not in weights]),
        ("unknown tensors", [name for name in weights if name not in shapes]),
        ("tensors of a wrong shape", wrong),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UnsupportedModelError(
                f"{folder}: {title} for its config.json: {', '.join(names[:5])}{more}"
            )
