"""The kernels' arrays in the cache: made once, mapped after that, and made anew when that is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors_torch

from pasta_async.backends.local.checkpoint import Checkpoint, open_folder
from pasta_async.backends.local.conversion import int8_arrays
from pasta_async.backends.local.engine import Engine
from pasta_async.backends.local.int8 import AVX2, Array
from pasta_async.backends.local.stored import stored_arrays
from pasta_async.backends.options import EngineOptions
from pasta_async.model_folder import write_json
from tests.helpers import local_models
from tests.helpers.engine_jobs import decoded, job, open_engine, run

save_file: Any = getattr(safetensors_torch, "save_file")  # noqa: B009 (it has no types)
pytestmark = pytest.mark.skipif(not AVX2, reason="the kernels need a CPU with AVX2")
INT8 = EngineOptions(device="cpu", slots=256, dtype="int8", threads=1)


@pytest.fixture(autouse=True)
def cache(own_cache: Path) -> Path:
    """Where the files are."""
    return own_cache / "int8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "model", seed=0)


def save(folder: Path, seed: int, vocabulary: int = 512) -> Path:
    local_models.model("qwen3", seed, vocabulary, head_dim=32, intermediate_size=192).save_pretrained(folder)
    return folder


def greedy(engine: Engine) -> list[int]:
    task = job([*range(20)], 30)
    run(engine, task)
    return decoded(task)


def files(cache: Path) -> list[Path]:
    """All but the locks."""
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


def unread(folder: Path) -> Checkpoint:
    """A model whose tensors nobody may ask for."""

    def tensor(name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read")

    return replace(open_folder(folder), tensor=tensor)


def arrays_of(folder: Path, converted: list[str] | None = None) -> dict[str, Array]:
    """The stored arrays of a model folder; `converted` gets the names of those that had to be made."""
    checkpoint = open_folder(folder)

    def make() -> Iterator[tuple[str, Array]]:
        for name, array in int8_arrays(checkpoint.config, checkpoint.tensor, threads=2):
            if converted is not None:
                converted.append(name)
            yield name, array

    return stored_arrays(checkpoint, make)


def test_a_second_start_reads_no_tensor_and_decodes_alike(folder: Path, cache: Path) -> None:
    expected = greedy(open_engine(folder, **INT8))
    (file,) = files(cache)
    assert file.name.startswith("model-")
    assert greedy(Engine(unread(folder), INT8)) == expected


def test_a_model_that_changes_is_converted_anew_and_the_file_of_before_goes(
    folder: Path, cache: Path
) -> None:
    before = greedy(open_engine(folder, **INT8))
    save(folder, seed=1, vocabulary=600)
    after = greedy(open_engine(folder, **INT8))
    assert after != before
    assert len(files(cache)) == 1
    assert greedy(Engine(unread(folder), INT8)) == after


def adapter(folder: Path, base: Path, seed: int) -> Path:
    """An adapter of one matrix, in peft's layout."""
    draw, name = torch.Generator().manual_seed(seed), "base_model.model.model.layers.1.mlp.down_proj"
    shapes = {f"{name}.lora_A.weight": (2, 192), f"{name}.lora_B.weight": (64, 2)}
    folder.mkdir(exist_ok=True)
    write_json(
        folder / "adapter_config.json", {"r": 2, "lora_alpha": 2, "base_model_name_or_path": str(base)}
    )
    tensors = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_has_a_file_of_its_own_and_a_new_one_when_it_changes(
    folder: Path, tmp_path: Path, cache: Path
) -> None:
    plain = greedy(open_engine(folder, **INT8))
    first = greedy(open_engine(adapter(tmp_path / "adapter", folder, seed=0), **INT8))
    second = greedy(open_engine(adapter(tmp_path / "adapter", folder, seed=1), **INT8))
    assert first != plain and second not in (plain, first)
    assert len(files(cache)) == 2


def test_a_model_that_is_gone_loses_its_file_when_another_is_converted(
    folder: Path, tmp_path: Path, cache: Path
) -> None:
    arrays_of(folder)
    (gone,) = files(cache)
    kept = save(tmp_path / "kept", seed=0)
    arrays_of(kept)
    assert gone in files(cache) and len(files(cache)) == 2
    shutil.rmtree(folder)
    arrays_of(save(tmp_path / "new", seed=0))
    assert gone not in files(cache) and len(files(cache)) == 2
    arrays_of(kept, converted := [])
    assert not converted


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "another index": lambda data: data.replace(
        b'"embedding.weights": ["int8"', b'"embedding.weights": ["int4"'
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(damage: str, folder: Path, cache: Path) -> None:
    arrays_of(folder)
    (file,) = files(cache)
    whole = file.read_bytes()
    damaged = DAMAGES[damage](whole)
    assert damaged != whole
    file.write_bytes(damaged)
    arrays_of(folder)
    assert files(cache) == [file] and file.read_bytes() == whole


def test_a_conversion_that_is_killed_is_begun_again(folder: Path, cache: Path) -> None:
    code = f"""
import os
from pathlib import Path
from pasta_async.backends.local.checkpoint import open_folder
from pasta_async.backends.local.conversion import int8_arrays
from pasta_async.backends.local.stored import stored_arrays
checkpoint = open_folder(Path({str(folder)!r}))
def make():
    for name, array in int8_arrays(checkpoint.config, checkpoint.tensor, 1):
        if name == "1.out.weights":
            os._exit(9)
        yield name, array
stored_arrays(checkpoint, make)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    (partial,) = files(cache)
    assert partial.suffix == ".partial"
    other = partial.with_name("of-a-model-that-is-gone.int8.partial")
    other.write_bytes(b"half")
    converted: list[str] = []
    arrays_of(folder, converted)
    assert converted and [path.suffix for path in files(cache)] == [".int8"]


def test_of_two_that_convert_at_once_one_waits_for_the_other(folder: Path) -> None:
    converted: list[str] = []
    with ThreadPoolExecutor(4) as threads:
        begun = [threads.submit(arrays_of, folder, converted) for _ in range(4)]
    results = [conversion.result() for conversion in begun]
    assert converted == [*results[0]]
    for result in results:
        np.testing.assert_array_equal(result["head.weights"], results[0]["head.weights"])


def test_without_room_for_the_file_a_warning_says_so_and_the_model_runs_from_memory(
    folder: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = greedy(open_engine(folder, **INT8))
    shutil.rmtree(cache)
    cache.write_text("no folder")
    assert greedy(open_engine(folder, **INT8)) == expected
    assert "cannot be written" in caplog.text


def test_a_converted_model_starts_without_torch(folder: Path) -> None:
    """Importing torch takes two seconds, which nothing of the second start needs."""
    expected = greedy(open_engine(folder, **INT8))
    code = f"""
import sys
from pathlib import Path
sys.modules["torch"] = None
from pasta_async.backends.local.sampler import TokenSampler
from pasta_async.backends.local.scheduler import Job
from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.backends.local.engine import Engine
from pasta_async.options import Sampling
engine = Engine(open_checkpoint(Path({str(folder)!r})), {dict(INT8)!r})
job = Job(0, range(20), 30, TokenSampler(Sampling(), 0), ())
engine.scheduler.add(job)
while engine.step() is not None:
    pass
print(job.ids[20:job.length].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(expected)
