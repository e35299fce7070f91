"""Load a checkpoint's weights from safetensors, one file or sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pasta_async.backends.local.config import read_json
from pasta_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import torch

    from pasta_async.backends.local.config import ModelConfig

__all__ = ["expected_shapes", "load_weights"]


def load_weights(
    folder: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Every tensor of the model by its Hugging Face name, on `device`, as `dtype`.

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
