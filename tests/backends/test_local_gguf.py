"""GGUF files: their numbers and ids beside those of folders, files as found in the wild, what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter

from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.backends.local.checkpoint import model_config
from pasta_async.backends.options import EngineOptions
from pasta_async.errors import UnsupportedModelError
from pasta_async.prompts import Message
from pasta_async.tokenizer import Tokenizer
from tests.helpers import local_models
from tests.helpers.engine_jobs import open_engine, watched
from tests.helpers.local_models import tk
from tests.helpers.vocabularies import split

pytestmark = pytest.mark.usefixtures("own_cache")
Metadata = dict[str, Any]

TYPES = {
    "llama": Type.F32,
    "llama, one key for all heads, tied": Type.F16,
    "llama 3.1, all biases": Type.BF16,
    "qwen2": Type.Q4_0,
    "qwen3": Type.Q5_1,
}
"""The type of the matrices of a file with each variant of `local_models`."""


def write(
    path: Path, model: Any, tokenizer: Any = None, kind: Type = Type.F32, changes: Metadata | None = None
) -> Path:
    """Write a model of transformers as llama.cpp's converter does; its weights become those of the file.

    Matrices are of the type `kind`. `changes` are metadata and tensors: (value, type), None to leave one out.
    """
    config, changes = model.config, changes or {}
    tokens = vocabulary(tokenizer or local_models.byte_level())
    writer = GGUFWriter(path, changes.pop("general.architecture", config.model_type))
    for key, value in {**metadata(config), **tokens, **changes}.items():
        if value is not None and not isinstance(value, tuple):
            writer.add_key_value(key, value, *kinds(value))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    tensors: dict[str, tuple[Any, Type] | None] = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.numpy()
        stored = kind if values.ndim == 2 else Type.F32
        data = gguf.quantize(values, stored)
        parameter.copy_(torch.as_tensor(gguf.dequantize(data, stored).copy()))
        if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
            # Rows of heads as llama.cpp has them: those that are rotated together next to each other.
            pairs = data.reshape(-1, 2, config.head_dim // 2, *data.shape[1:]).swapaxes(1, 2)
            data = pairs.reshape(data.shape)
        tensors[names.get_name(name, (".weight", ".bias")) or name] = (data, stored)
    if config.rope_parameters["rope_type"] == "llama3":
        raw = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
        divisors = model_config(raw, path).rope_divisors
        tensors["rope_freqs.weight"] = (np.array(divisors, np.float32), Type.F32)
    tensors |= {key: value for key, value in changes.items() if key.endswith((".weight", ".bias"))}
    for name, entry in tensors.items():
        if entry is not None:
            writer.add_tensor(name, np.array(entry[0]), raw_dtype=entry[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def kinds(value: Any) -> list[GGUFValueType]:
    """Types of a value in the metadata: of an array also that of what is in it."""
    if isinstance(value, list):
        return [GGUFValueType.ARRAY, *kinds(cast("list[Any]", value)[0])]
    if type(value) is int:
        return [GGUFValueType.INT32 if value < 2**31 else GGUFValueType.UINT32]
    return [GGUFValueType.get_type(value)]


def metadata(config: Any) -> Metadata:
    rope = config.rope_parameters
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    return {f"{config.model_type}.{key}": value for key, value in values.items()}


def vocabulary(tokenizer: Any) -> Metadata:
    """A byte-level tokenizer's metadata."""
    raw = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {entry["id"]: entry for entry in raw["added_tokens"]}
    by_text = {**raw["model"]["vocab"], **{entry["content"]: i for i, entry in added.items()}}
    tokens = sorted(by_text, key=by_text.__getitem__)
    types = [1 for _ in tokens]  # normal ones
    for i, entry in added.items():
        types[i] = 3 if entry["special"] else 4
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(merge) for merge in raw["model"]["merges"]],
        "eos_token_id": tokenizer.eos_token_id,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    return {**named, "tokenizer.chat_template": tokenizer.chat_template}


@pytest.mark.parametrize("variant", TYPES)
def test_logits_and_tokens_are_those_of_a_folder_and_of_transformers(variant: str, tmp_path: Path) -> None:
    model = local_models.model(**local_models.VARIANTS[variant])
    file = write(tmp_path / "model.gguf", model, kind=TYPES[variant])
    model.save_pretrained(tmp_path / "folder")
    options = EngineOptions(device="cpu", slots=256, dtype="float32")
    ids = np.random.default_rng(0).integers(0, 512, 75).tolist()
    ours, theirs = (
        watched(open_engine(path, **options), ids, count=12)[0] for path in (file, tmp_path / "folder")
    )
    torch.testing.assert_close(ours.logits[0], theirs.logits[0], atol=1e-5, rtol=1e-5)
    assert ours.ids == theirs.ids == local_models.greedy(model, ids, 12)


@pytest.mark.parametrize(
    "kind", [Type.Q8_0, Type.Q4_1, Type.Q4_K, Type.Q6_K, Type.BF16], ids=lambda kind: kind.name
)
def test_types_that_the_package_dequantises_are_read(kind: Type, tmp_path: Path) -> None:
    model = local_models.model(hidden_size=256, intermediate_size=256, num_hidden_layers=1, vocabulary=600)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(0).integers(0, 60, (600, 256 // block * size), np.uint8)
    file = write(tmp_path / "model.gguf", model, changes={"token_embd.weight": (data, kind)})
    expected = torch.as_tensor(gguf.dequantize(data, kind).reshape(600, 256).copy())
    tensor = open_checkpoint(file).tensor("model.embed_tokens.weight").float()
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


CUTS: dict[str, Any] = {
    "gpt-2": tk.pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": tk.pre_tokenizers.Sequence(
        [
            tk.pre_tokenizers.Digits(individual_digits=True),
            tk.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
} | {
    name: tk.pre_tokenizers.Sequence(
        [
            split(numbers),
            tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for name, numbers in (("llama-bpe", r"\p{N}{1,3}"), ("qwen2", r"\p{N}"))
}
TEXTS = [
    *local_models.CORPUS[:3],
    "In 1914, 20.07.1969 and 3.14159; WE'RE, it's, they'LL  ...\n\n  x\r\n\ty   ",
    "1. Eat.\n\n2. Sleep…\n\n\n<think>hm</think> e\u0301 漢字 🎉",
]


@pytest.mark.parametrize("pre", CUTS)
def test_byte_level_tokenizers_encode_as_hugging_faces(pre: str, tmp_path: Path) -> None:
    fast = local_models.byte_level()
    backend: Any = fast.backend_tokenizer
    backend.pre_tokenizer = CUTS[pre]
    backend.model.ignore_merges = pre == "llama-bpe"
    if pre != "qwen2":
        backend.normalizer = tk.normalizers.Sequence([])
    saved: Any = fast
    saved.save_pretrained(tmp_path / "folder")
    expected = Tokenizer.from_folder(tmp_path / "folder")
    changes = {"tokenizer.ggml.pre": pre}
    tokenizer = open_checkpoint(
        write(tmp_path / "a.gguf", local_models.model(), fast, changes=changes)
    ).tokenizer()
    for text in TEXTS:
        assert tokenizer.encode(text) == expected.encode(text)
        messages: list[Message] = [{"role": "user", "content": text}]
        assert tokenizer.encode_chat(messages, {}) == expected.encode_chat(messages, {})
    assert tokenizer.end_ids == tuple(saved.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert tokenizer.tags == expected.tags
    assert tokenizer.tags is not None


# As found in the wild --------------------------------------------------------------------------------------

KEY = "tokenizer.ggml."


def test_ends_that_are_none_are_no_reason_to_refuse(tmp_path: Path) -> None:
    model = local_models.model()
    plain = open_checkpoint(write(tmp_path / "plain.gguf", model)).tokenizer()
    changes: Metadata = {f"{KEY}{name}_token_id": 2**32 - 1 for name in ("eos", "eot", "bos")}
    tokenizer = open_checkpoint(write(tmp_path / "wild.gguf", model, changes=changes)).tokenizer()
    assert {*tokenizer.end_ids} == {*plain.end_ids}  # they are special tokens as well


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", None])
def test_a_text_begins_once_whoever_writes_the_beginning(template: str | None, tmp_path: Path) -> None:
    begin: Any = local_models.byte_level().convert_tokens_to_ids("<|im_start|>")
    changes: Metadata = {f"{KEY}bos_token_id": begin, f"{KEY}add_bos_token": True}
    changes["tokenizer.chat_template"] = template
    tokenizer = open_checkpoint(write(tmp_path / "a.gguf", local_models.model(), changes=changes)).tokenizer()
    ids = tokenizer.encode_chat([{"role": "user", "content": "x"}], {})
    assert ids[0] == begin and ids.count(begin) == 1


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_rotary_factor_without_a_type_is_linear_as_for_llama_cpp(key: str, tmp_path: Path) -> None:
    changes: Metadata = {f"llama.{key}": 4.0}
    config = open_checkpoint(write(tmp_path / "a.gguf", local_models.model(), changes=changes)).config
    assert {*config.rope_divisors} == {4.0}


def test_a_file_is_read_once_and_again_when_it_changes(tmp_path: Path, own_cache: Path) -> None:
    """Config and tokenizer of a file that was opened before come from the cache, unless that is damaged."""
    file = write(tmp_path / "model.gguf", local_models.model())
    encoded = open_checkpoint(file).tokenizer().encode("some words")
    before, whole = file.stat(), file.read_bytes()
    file.write_bytes(b"X" * len(whole))  # a header that nobody could read
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_checkpoint(file).tokenizer().encode("some words") == encoded
    file.write_bytes(whole)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for stored in [*own_cache.rglob("gguf/**/*.json")]:
        stored.write_bytes(stored.read_bytes()[:40])
    assert open_checkpoint(file).tokenizer().encode("some words") == encoded
    write(file, local_models.model(num_hidden_layers=1))
    assert open_checkpoint(file).config.layers == 1
    open_checkpoint(file).tokenizer()
    assert len([*own_cache.rglob("gguf/**/*.json")]) == 2, "what the earlier file had is gone"


# Refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Metadata, str]] = {
    "architecture": ({"general.architecture": "gemma3"}, "gguf: general.architecture is 'gemma3'"),
    "split": ({"split.count": 2}, "gguf: it is one of several files"),
    "no layers": ({"llama.block_count": None}, "block_count"),
    "one enormous head": ({"llama.attention.key_length": 2**30}, "value_length is 16, not 1073741824"),
    "yarn": ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "'yarn'"),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count is 8"),
    "window": ({"llama.attention.sliding_window": 512}, "llama.attention.sliding_window"),
    "missing tensor": ({"blk.1.ffn_up.weight": None}, r"missing tensors .*blk\.1\.ffn_up\.weight"),
    "a tensor under two names": (
        {
            "blk.0.ffn_down.weight": (np.zeros((64, 512), np.float32), Type.F32),
            "model.layers.0.mlp.down_proj.weight": (np.zeros((64, 160), np.float32), Type.F32),
        },
        r"unknown tensors .*model\.layers\.0\.mlp\.down_proj",
    ),
    "wrong shape": (
        {"blk.0.ffn_down.weight": (np.zeros((64, 512), np.float32), Type.F32)},
        r"blk\.0\.ffn_down\.weight is \[64, 512\], not \[64, ",
    ),
    "unknown tensor": ({"extra.weight": (np.zeros(1, np.float32), Type.F32)}, "unknown tensors .*extra"),
    "type": ({"output_norm.weight": (np.zeros(64, np.int8), Type.I8)}, "of the type I8"),
    "alignment": ({"general.alignment": "none"}, "is malformed"),
    "alignment of a fraction": ({"general.alignment": 32.0}, "general.alignment is 32.0, not an integer"),
    "tokenizer": (
        {"tokenizer.ggml.model": "llama"},
        "gguf: its tokenizer is of the kind 'llama'; only 'gpt2'",
    ),
    "an id outside the vocabulary": ({"tokenizer.ggml.eot_token_id": 10_000}, "eot_token_id is 10000"),
    "no types of tokens": ({"tokenizer.ggml.token_type": None}, "token_type"),
    "a scaling with a long list": (
        {"rope_freqs.weight": (np.ones(1000, np.float32), Type.F32)},
        r"rope_freqs\.weight has the shape \(1000,\)",
    ),
    "no pre-tokenizer, as in early files": ({"tokenizer.ggml.pre": None}, "None, not one of gpt-2"),
    "pre-tokenizer": ({"tokenizer.ggml.pre": "tekken"}, "'tekken', not one of gpt-2, smollm, llama-bpe"),
}


@pytest.mark.parametrize("refused", REFUSED)
async def test_unusable_files_are_refused_with_the_reason(refused: str, tmp_path: Path) -> None:
    changes, message = REFUSED[refused]
    file = write(
        tmp_path / "model.gguf", local_models.model(), local_models.byte_level(), changes={**changes}
    )
    await local_models.refused(file, message)


HEADS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another kind of file": (lambda data: b"PK" + data[2:], "not a little-endian GGUF file"),
    "big-endian": (lambda data: data[:4] + data[4:8][::-1] + data[8:], "not a little-endian GGUF file"),
    "cut in its tensors": (lambda data: data[:-1], "truncated"),
    "cut in its header": (lambda data: data[:400], "is malformed"),
    "billions of tensors": (lambda data: data[:8] + b"\xff" * 8 + data[16:], "is malformed"),
}


@pytest.mark.parametrize("damage", HEADS)
async def test_damaged_files_are_refused(damage: str, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", local_models.model())
    change, message = HEADS[damage]
    file.write_bytes(change(file.read_bytes()))
    await local_models.refused(file, message)


def test_no_damage_to_a_header_does_more_than_refuse_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", local_models.model(num_hidden_layers=1), local_models.byte_level())
    data, draw = file.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(data)
        for position in draw.integers(0, 1500, 3):
            damaged[position] = draw.integers(256)
        file.write_bytes(damaged[: draw.integers(1, len(data))] if draw.random() < 0.3 else damaged)
        with suppress(UnsupportedModelError):
            open_checkpoint(file)
