"""The int8 kernels beside float32, on small random models; the number format that a model is given."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from pasta_async.backends.local import kernels
from pasta_async.backends.local.checkpoint import model_config
from pasta_async.backends.local.engine import Engine
from pasta_async.backends.local.int8 import AVX2, choose_dtype
from pasta_async.backends.options import EngineOptions
from pasta_async.errors import InvalidRequestError
from tests.helpers import local_models
from tests.helpers.engine_jobs import open_engine, watched

pytestmark = [
    pytest.mark.skipif(not AVX2, reason="the kernels need a CPU with AVX2"),
    pytest.mark.usefixtures("own_cache"),  # models are stored there
]

SHAPES: dict[str, dict[str, Any]] = {
    "llama, all biases": {"kind": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen3, tied, heads of 32, an odd vocabulary": {
        "kind": "qwen3",
        "head_dim": 32,
        "tie_word_embeddings": True,
        "vocabulary": 515,
    },
    "9 heads for 3 of keys": {
        "kind": "llama",
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
}


@pytest.fixture(params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    local_models.model(**SHAPES[request.param], intermediate_size=192).save_pretrained(tmp_path)
    return tmp_path


def open_int8(folder: Path) -> Engine:
    return open_engine(folder, slots=1024, dtype="int8")


def test_machine_code_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernels.py", "vectors.py", "int8.py"):
        shutil.copy(Path(kernels.__file__).with_name(name), tmp_path)
    folders = {Path(kernels.code_folder()).name}
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    folders.add(Path(kernels.code_folder()).name)
    assert len(folders) == 1
    with (tmp_path / "vectors.py").open("a") as file:
        file.write("# changed")
    folders.add(Path(kernels.code_folder()).name)
    assert len(folders) == 2


def ids_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, 512, length).tolist()


def logits(engine: Engine, *prompts: list[int], count: int = 4) -> list[list[torch.Tensor]]:
    return [output.logits for output in watched(engine, *prompts, count=count)]


def distance(seen: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to the length of the second; 1.4 for vectors that have nothing to do with each other."""
    return ((seen - expected).square().sum() / expected.square().sum()).sqrt().item()


def test_logits_are_close_to_float32_for_any_number_of_rows(folder: Path) -> None:
    exact, int8 = open_engine(folder, slots=1024, dtype="float32"), open_int8(folder)
    lengths = [*range(1, 14), 16, 40, 64, 100, 150]  # tiles of every number of rows
    distances = [
        distance(logits(int8, ids, count=1)[0][0], logits(exact, ids, count=1)[0][0])
        for ids in map(ids_of, lengths)
    ]
    assert fmean(distances) < 0.2  # of unrelated logits: 1.4


def test_a_prompt_has_the_same_logits_in_parts_of_any_size(folder: Path) -> None:
    few = EngineOptions(device="cpu", slots=1024, dtype="int8", max_prefill_tokens=8)
    engines = open_int8(folder), open_engine(folder, **few)
    for length in (16, 63, 64, 65, 300):
        (whole,), (in_parts,) = (logits(engine, ids_of(length), count=1) for engine in engines)
        assert torch.equal(whole[0], in_parts[0])


def test_a_row_is_the_same_whatever_shares_its_step(folder: Path) -> None:
    shared = ids_of(30)
    prompts = [[*shared, token] for token in range(13)]  # more than two tiles of rows
    (alone,) = logits(open_int8(folder), prompts[0])
    together = logits(open_int8(folder), *prompts)
    assert all(torch.equal(a, b) for a, b in zip(alone, together[0], strict=True))


def test_the_number_of_threads_changes_nothing(folder: Path) -> None:
    prompts = [ids_of(length) for length in (1, 9, 30, *(2 for _ in range(17)))]  # and many rows' logits
    results: list[list[list[torch.Tensor]]] = []
    for threads in (1, 3):
        engine = open_engine(folder, slots=1024, dtype="int8", threads=threads)
        results.append(logits(engine, *prompts))
    for by_one, by_three in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(by_one, by_three, strict=True))


def test_sizes_that_the_kernels_do_not_take_are_computed_in_float32_which_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local_models.model(intermediate_size=160).save_pretrained(tmp_path)
    engine = open_int8(tmp_path)
    assert engine.dtype == "float32" and len(caplog.records) == 1
    assert logits(engine, ids_of(9))[0][0].isfinite().all()


SMALL = {
    **{"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192},
    **{"num_hidden_layers": 3, "num_attention_heads": 4},
}


@pytest.mark.parametrize(
    ("shape", "device", "expected"),
    [
        ({}, "cpu", "float32"),
        ({}, "cuda", "float32"),
        ({"vocab_size": 2 * 10**6}, "cpu", "int8"),
        ({"vocab_size": 2 * 10**6, "intermediate_size": 160}, "cpu", "float32"),
        ({"vocab_size": 2 * 10**6}, "cuda", "bfloat16"),
    ],
)
def test_auto_takes_what_the_device_does_well(shape: dict[str, Any], device: str, expected: str) -> None:
    config = model_config({**SMALL, **shape}, Path("config.json"))
    assert choose_dtype("auto", config, device) == expected


def test_int8_is_refused_on_other_devices() -> None:
    with pytest.raises(InvalidRequestError):
        choose_dtype("int8", model_config(SMALL, Path("config.json")), "cuda")
