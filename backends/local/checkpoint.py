"""The shape of a model, and its checkpoint folder; what the embedded engine cannot compute is refused."""

from __future__ import annotations

import math
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch

from pasta_async.backends.tokenization import TextCodec, TokenizerFiles, read_object
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.jobs import progress, write_json

_REFUSAL = "the embedded engine does not support it. SGLang may."
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FLOATS = ("F64", "F32", "F16", "BF16")
_PENALTY, _MOST_PENALTY = "repetition_penalty", 2
_MOST_LAYERS, _MOST_OF_A_HEAD = 1000, 1024  # of any model there is; a damaged file may say billions


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
    positions: int  # most positions the model was made for (`max_position_embeddings`)
    rope_theta: float
    rope_divisors: tuple[float, ...]  # of rotary frequencies; all 1 where nothing is stretched
    tied: bool  # whether the output layer is the embedding
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool  # whether queries and keys are normalised for each head (Qwen3)

    def inverse_frequencies(self) -> list[float]:
        """Rotary frequencies, one for each pair of a head's components."""
        plain = _frequencies(self.rope_theta, self.head_dim // 2)
        return [frequency / by for frequency, by in zip(plain, self.rope_divisors, strict=True)]


class Checkpoint(ABC):
    """What a model is loaded from. All of it is checked when it is opened, before memory is taken."""

    path: Path
    config: ModelConfig
    raw: dict[str, Any]  # what its config.json says, or would say

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its Hugging Face name, of any floating type, on the CPU."""

    @abstractmethod
    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer with the chat template, as parsed files in Hugging Face's form.

        Raises:
            UnsupportedModelError: It is missing or malformed.
        """

    def codec(self) -> TextCodec:
        """The same, ready to encode and decode.

        Raises:
            UnsupportedModelError: It is missing or malformed, or of a kind that is not supported.
        """
        return self.tokenizer().codec(self.path)

    def generation_defaults(self) -> GenerationDefaults:
        """The sampling that it prefers; see `generation_defaults`."""
        return generation_defaults(self.path, self.config.vocab_size)


class CheckpointFolder(Checkpoint):
    """A checkpoint in Hugging Face's layout: config.json, safetensors, and tokenizer.json for `codec`.

    Args:
        path: The folder.
        refusal: How a message goes on about what is not supported.

    Raises:
        UnsupportedModelError: As `read_config` says; or no safetensors file, a broken one, or tensors that
            are missing, unknown, of another shape than config.json says, or no floating numbers.
    """

    def __init__(self, path: Path, refusal: str = _REFUSAL) -> None:
        self.path = path
        self.config: ModelConfig = read_config(path, refusal)
        self.raw: dict[str, Any] = read_json(path / "config.json")
        self._files: dict[str, Any] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        with well_formed(path):
            files = _files(path)
        for file in files:
            opened, found = open_safetensors(file, refusal)
            self._files |= dict.fromkeys(found, opened)
            shapes |= found
        if self.config.tied:  # some writers save what follows from others
            shapes.pop("lm_head.weight", None)
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("rotary_emb.inv_freq")}
        compare_shapes(path, expected_shapes(self.config), shapes)

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint`; the file's own pages, not a copy."""
        return self._files[name].get_tensor(name)

    def tokenizer(self) -> TokenizerFiles:
        """See `Checkpoint`."""
        return TokenizerFiles.read(self.path)

    def codec(self) -> TextCodec:
        """See `Checkpoint`; an error names tokenizer.json."""
        return TextCodec.from_folder(self.path)


def read_config(folder: Path, refusal: str = _REFUSAL) -> ModelConfig:
    """Read and check `config.json` of a checkpoint folder; `refusal` is as for `CheckpointFolder`.

    Raises:
        UnsupportedModelError: The folder or file is missing or malformed, or the model needs something else
            than Llama, Qwen2 or Qwen3 with full attention, unquantised weights, and rotary positions that
            are plain, divided by a factor, or Llama 3's.
    """
    path = folder / "config.json"
    return model_config(read_json(path), path, refusal)


def model_config(raw: dict[str, Any], path: Path, refusal: str = _REFUSAL) -> ModelConfig:
    """The shape that a parsed config.json says; `path` is where it comes from. Raises as `read_config`."""
    with well_formed(path):
        return ConfigReader(path, raw, refusal).config()


@contextmanager
def well_formed(path: Path) -> Generator[None]:
    """Reading what has another form than it should ends with an `UnsupportedModelError` that names it."""
    try:
        yield
    except (OSError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise UnsupportedModelError(f"{path} is malformed: {error!r:.300}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UnsupportedModelError: It is missing, is not JSON, or holds something else.
    """
    value = read_object(path)
    if value is None:
        raise UnsupportedModelError(f"{path} is missing: name a checkpoint folder with config.json in it")
    return value


class GenerationDefaults(NamedTuple):
    """How a model is decoded where nobody says otherwise, as its `generation_config.json` has it."""

    repetition_penalty: float = 1.0
    suppress_tokens: tuple[int, ...] = ()  # ids that are never chosen


def generation_defaults(model: Path, vocab_size: float = math.inf) -> GenerationDefaults:
    """What a model folder says, where it has the file.

    Raises:
        UnsupportedModelError: It is malformed, the penalty not above 0 and at most 2, or an id not in the
            vocabulary.
    """
    if not model.is_dir():
        return GenerationDefaults()
    path = model / "generation_config.json"
    raw = read_object(path) or {}
    penalty = ConfigReader(path, raw).number(_PENALTY, 1.0)
    if penalty > _MOST_PENALTY:
        raise UnsupportedModelError(f"{path}: {_PENALTY} must be at most {_MOST_PENALTY}, not {penalty}")
    with well_formed(path):
        suppressed: tuple[Any, ...] = tuple(raw.get("suppress_tokens") or ())
    if not all(isinstance(token, int) and 0 <= token < vocab_size for token in suppressed):
        raise UnsupportedModelError(f"{path}: suppress_tokens must be ids from 0 on, below {vocab_size}")
    return GenerationDefaults(penalty, suppressed)


@dataclass(frozen=True)
class ConfigReader:
    """Takes values out of a config, naming the file and the key when one is wrong."""

    path: Path
    raw: dict[str, Any]  # what a config.json holds
    refusal: str = _REFUSAL  # how a message goes on about what is not supported

    def refuse(self, why: str) -> UnsupportedModelError:
        """The error that says why."""
        return UnsupportedModelError(f"{self.path}: {why}; {self.refusal}")

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number that a float can hold."""
        value = self.raw.get(key)
        value = default if value is None else value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
            return value
        raise self._mistaken(key, "a positive number", value)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.number(key, default)
        if value != int(value):
            raise self._mistaken(key, "an integer", value)
        return int(value)

    def _mistaken(self, key: str, kind: str, value: object) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.path}: {key} must be {kind}, not {value!r}")

    def config(self) -> ModelConfig:
        """The shape of a model that the engine computes."""
        architecture = self._architecture()
        self._refuse_extras()
        heads, hidden = self.integer("num_attention_heads"), self.integer("hidden_size")
        kv_heads = self.integer("num_key_value_heads", heads)
        head_dim = self.integer("head_dim", max(hidden // heads, 1))
        if heads % kv_heads:
            raise UnsupportedModelError(f"{self.path}: {heads} heads cannot share {kv_heads} key-value heads")
        if head_dim % 2 or head_dim > _MOST_OF_A_HEAD:
            raise self.refuse(f"head_dim {head_dim} is odd or more than {_MOST_OF_A_HEAD}")
        if (layers := self.integer("num_hidden_layers")) > _MOST_LAYERS:
            raise self.refuse(f"it has {layers} layers, more than {_MOST_LAYERS}")
        llama, bias = architecture == "LlamaForCausalLM", bool(self.raw.get("attention_bias", False))
        theta, divisors = self._rope(head_dim // 2)
        return ModelConfig(
            architecture=architecture,
            vocab_size=self.integer("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=self.integer("intermediate_size"),
            norm_eps=self.number("rms_norm_eps", 1e-6),
            positions=self.integer("max_position_embeddings", 2048),
            rope_theta=theta,
            rope_divisors=divisors,
            tied=bool(self.raw.get("tie_word_embeddings", False)),
            qkv_bias=bias or architecture == "Qwen2ForCausalLM",
            out_bias=bias and architecture != "Qwen2ForCausalLM",
            mlp_bias=llama and bool(self.raw.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
        )

    def _architecture(self) -> str:
        names: list[str] = self.raw.get("architectures") or []
        if len(names) != 1 or names[0] not in ARCHITECTURES:
            raise self.refuse(f"architectures is {names}, not one of {', '.join(ARCHITECTURES)}")
        return names[0]

    def _refuse_extras(self) -> None:
        raw = self.raw
        if raw.get("quantization_config"):
            raise self.refuse("the weights are quantised (quantization_config)")
        if kinds := set(raw.get("layer_types") or ()) - {"full_attention"}:
            raise self.refuse(f"layer_types has {', '.join(sorted(map(str, kinds)))}")
        if raw.get("use_sliding_window"):
            raise self.refuse("it uses a sliding window (use_sliding_window)")
        if raw.get("hidden_act", "silu") != "silu":
            raise self.refuse(f"hidden_act is {raw['hidden_act']!r}, not 'silu'")

    def _rope(self, half: int) -> tuple[float, tuple[float, ...]]:
        """Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters`."""
        nested: dict[str, Any] = self.raw.get("rope_parameters") or {}
        scaling: dict[str, Any] = nested or self.raw.get("rope_scaling") or {}
        reader = ConfigReader(self.path, {**self.raw, **scaling}, self.refusal)
        theta = reader.number("rope_theta", 10000.0)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if reader.raw.get("partial_rotary_factor", 1.0) != 1.0:
            raise self.refuse("it rotates a part of each head only (partial_rotary_factor)")
        match kind:
            case "default":
                return theta, (1.0,) * half
            case "linear":
                return theta, (reader.number("factor"),) * half
            case "llama3":
                return theta, tuple(reader._llama3_divisor(f) for f in _frequencies(theta, half))
            case "longrope" if scaling["long_factor"] == scaling["short_factor"]:
                return theta, reader._longrope_divisors(half)
            case _:
                raise self.refuse(f"rope_scaling is of type {kind!r}, not 'default', 'linear' or 'llama3'")

    def _llama3_divisor(self, frequency: float) -> float:
        """The factor for low frequencies, 1 for high ones, blended between (as transformers does)."""
        factor, original = self.number("factor"), self.integer("original_max_position_embeddings")
        low, high = self.number("low_freq_factor"), self.number("high_freq_factor")
        blend = min(max((original * frequency / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
        return 1 / ((1 - blend) / factor + blend)

    def _longrope_divisors(self, half: int) -> tuple[float, ...]:
        """Given one by one, and the same for every length, as a converted GGUF file may have them."""
        divisors = tuple(map(float, self.raw["long_factor"]))
        if len(divisors) != half or not all(0 < divisor < math.inf for divisor in divisors):
            raise self._mistaken("long_factor", f"{half} positive numbers", divisors)
        if self.number("attention_factor") != 1:
            raise self.refuse("rope_scaling has an attention_factor")
        return divisors


def _frequencies(theta: float, half: int) -> list[float]:
    return [theta ** (-i / half) for i in range(half)]


def weight_count(config: ModelConfig) -> int:
    """How many weights a model of this shape has."""
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


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
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


def open_safetensors(path: Path, refusal: str = _REFUSAL) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Open a safetensors file; what `safe_open` gives, and the shape of each tensor.

    Raises:
        UnsupportedModelError: It is missing or broken, or has a tensor of no floating numbers.
    """
    open_file: Callable[..., Any] = safe_open
    try:
        file: Any = open_file(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise UnsupportedModelError(f"{path} is not a readable safetensors file: {error}") from error
    parts: dict[str, Any] = {name: file.get_slice(name) for name in file.keys()}
    for name, part in parts.items():
        if part.get_dtype() not in _FLOATS:
            raise UnsupportedModelError(f"{path}: {name} is of type {part.get_dtype()}; {refusal}")
    return file, {name: tuple(part.get_shape()) for name, part in parts.items()}


def compare_shapes(
    path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise an `UnsupportedModelError` that names tensors which are missing, unknown or of a wrong shape."""
    faults = {
        "missing tensors": [name for name in expected if name not in found],
        "unknown tensors": [name for name in found if name not in expected],
        "tensors of a wrong shape": [
            f"{name} is {list(found[name])}, not {list(shape)}"
            for name, shape in expected.items()
            if found.get(name, shape) != shape
        ],
    }
    for title, names in faults.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UnsupportedModelError(f"{path}: {title} for its config: {', '.join(names[:5])}{more}")


# Writing a folder ------------------------------------------------------------------------------------------

ExportDType = Literal["float32", "bfloat16", "float16"]
Files = dict[str, Mapping[str, Any] | str]
"""Files of a model folder beside the weights, by name: text, or an object that is written as JSON."""

FILE_BYTES = 10**9
"""Of weights in one file, and in memory while it is written; more only where a single tensor has more."""

_save_file: Any = getattr(safetensors_torch, "save_file")  # noqa: B009 (it has no types)


def model_files(config: Mapping[str, Any], tokenizer: TokenizerFiles, generation: Mapping[str, Any]) -> Files:
    """The files of a model folder beside the weights.

    Args:
        config: For config.json.
        tokenizer: For tokenizer.json, tokenizer_config.json and the chat template.
        generation: For generation_config.json; what says nothing is left out.
    """
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    named = {key: value for key, value in tokenizer.config.items() if key != "chat_template"}
    files: Files = {
        "config.json": {key: value for key, value in config.items() if value is not None},
        "generation_config.json": {key: value for key, value in generation.items() if value},
        "tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, **tokenizer.tokenizer},
        "tokenizer_config.json": {**plain, **named},
    }
    return {**files, "chat_template.jinja": tokenizer.template} if tokenizer.template else files


def write_folder(
    out: Path, files: Files, sizes: Mapping[str, int], read: Callable[[str], torch.Tensor], label: str
) -> None:
    """Write a model folder, which appears when it is complete. Weights are read and written file by file.

    Args:
        out: The new folder.
        files: All but the weights.
        sizes: Bytes of each tensor, by name.
        read: Gives the tensor of a name.
        label: Says what is done, beside the progress bar.
    """
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir(parents=True)
    try:
        for name, content in files.items():
            if isinstance(content, str):
                (partial / name).write_text(content, encoding="utf-8")
            else:
                write_json(partial / name, content)
        _write_weights(partial, sizes, read, label)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_weights(
    folder: Path, sizes: Mapping[str, int], read: Callable[[str], torch.Tensor], label: str
) -> None:
    parts = _parts(sizes)
    places: dict[str, str] = {}
    with progress(len(sizes), label) as advance:
        for number, names in enumerate(parts, 1):
            part = "" if len(parts) == 1 else f"-{number:05}-of-{len(parts):05}"
            file = f"model{part}.safetensors"
            tensors: dict[str, torch.Tensor] = {}
            for name in names:
                tensors[name] = read(name).contiguous()
                advance()
            _save_file(tensors, folder / file, {"format": "pt"})
            places |= dict.fromkeys(names, file)
    if len(parts) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        write_json(folder / "model.safetensors.index.json", index)


def _parts(sizes: Mapping[str, int]) -> list[list[str]]:
    """The tensors of each file, in order."""
    parts: list[list[str]] = [[]]
    for name, size in sizes.items():
        if parts[-1] and sum(sizes[other] for other in parts[-1]) + size > FILE_BYTES:
            parts.append([])
        parts[-1].append(name)
    return parts


def export_folder(checkpoint: Checkpoint, out: Path, dtype: ExportDType = "float32") -> None:
    """Write config, weights, tokenizer with chat template, and ids that end an answer; adapters are merged.

    transformers and SGLang load the folder.

    Args:
        checkpoint: The model.
        out: The folder; it appears when it is complete.
        dtype: Of the weights; float32 loses nothing.

    Raises:
        InvalidRequestError: `out` is there already.
        UnsupportedModelError: The tokenizer cannot be used.
    """
    if out.exists():
        raise InvalidRequestError(f"{out} is there already: name a new folder")
    ends = checkpoint.codec().end_ids  # what cannot be used is not written
    config = {key: value for key, value in checkpoint.raw.items() if key != "torch_dtype"}
    generation = {"eos_token_id": [*ends], **checkpoint.generation_defaults()._asdict()}
    files = model_files({**config, "dtype": dtype}, checkpoint.tokenizer(), generation)
    stored: torch.dtype = getattr(torch, dtype)
    sizes = {
        name: math.prod(shape) * stored.itemsize for name, shape in expected_shapes(checkpoint.config).items()
    }
    write_folder(out, files, sizes, lambda name: checkpoint.tensor(name).to(stored), f"writing {out.name}")
