"""Model folders that the embedded engine refuses, and why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pasta_async import Client
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.machine import available_cores, available_memory
from pasta_async.errors import UnsupportedModelError
from tests.helpers import local_models
from tests.helpers.engine_jobs import open_engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder")
    return local_models.save(path, local_models.model(), local_models.byte_level())


_config = partial(local_models.configured, "config.json")
_weights = partial(local_models.weighed, "model.safetensors")


def _index(weight_map: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


def _generation(**values: Any) -> Callable[[Path], Any]:
    return lambda folder: (folder / "generation_config.json").write_text(json.dumps(values))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a penalty beyond all": (_generation(repetition_penalty=3), "repetition_penalty"),
    "template in no UTF-8": (
        lambda f: (f / "chat_template.jinja").write_bytes(b"\xff\xfe"),
        r"chat_template\.jinja",
    ),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
    "broken weights": (
        lambda f: (f / "model.safetensors").write_bytes(b"no tensors"),
        "model.safetensors",
    ),
    "missing tensor": (
        _weights(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
        r"layers\.1\.mlp\.up_proj",
    ),
    "unknown tensor": (_weights(lambda t: t.update(extra=torch.zeros(1))), "extra"),
    "wrong shape": (
        _weights(lambda t: t.update({"model.norm.weight": torch.zeros(3)})),
        r"model\.norm\.weight",
    ),
    "whole numbers": (
        _weights(lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)})),
        r"model\.norm\.weight is of type I8",
    ),
    "architecture": (
        _config(architectures=["MistralForCausalLM"]),
        "MistralForCausalLM",
    ),
    "rope": (
        _config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
        "'yarn'",
    ),
    "rope of next to nothing": (
        _config(rope_parameters={"rope_type": "default", "rope_theta": 1e-320}),
        "rope_theta",
    ),
    "quantised": (_config(quantization_config={"bits": 4}), "quantised"),
    "sliding window": (_config(use_sliding_window=True), "sliding window"),
    "activation": (_config(hidden_act="gelu"), "'gelu'"),
    "nonsense": (_config(num_hidden_layers="many"), "num_hidden_layers"),
    "heads": (_config(num_key_value_heads=3), "4 heads cannot share 3"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json"),
    "rope that is none": (_config(rope_parameters=5), "config.json is malformed"),
    "index that leads elsewhere": (_index({"a": "../model.safetensors"}), "not beside it"),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "save the checkpoint as safetensors",
    ),
    "layers beyond all": (_config(num_hidden_layers=2**31), "num_hidden_layers is 2147483648"),
    "fewer rows than tokens": (_config(vocab_size=100), "is \\[512, 64\\], not \\[100, 64\\]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_unusable_folders_are_refused_with_the_reason(
    folder: Path, tmp_path: Path, damage: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    change, message = DAMAGE[damage]
    change(copy)
    await local_models.refused(copy, message)


async def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    local_models.save(tmp_path, local_models.model(vocabulary=300), local_models.byte_level())
    await local_models.refused(tmp_path, "300")


async def test_the_repetition_penalty_is_the_folders_unless_another_is_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    penalised = Path(shutil.copytree(folder, tmp_path / "model"))
    _generation(repetition_penalty=2)(penalised)
    texts: list[str] = []
    for path, penalty in (folder, None), (folder, 2), (penalised, None), (penalised, 1):
        async with Client(LocalBackend(path)) as client:
            texts.append((await client.generate("Tea?", max_tokens=20, repetition_penalty=penalty)).text)
    plain, asked_for, of_the_folder, overridden = texts
    assert plain == overridden
    assert asked_for == of_the_folder != plain


async def test_tokens_that_the_folder_suppresses_are_never_chosen(folder: Path, tmp_path: Path) -> None:
    silenced = Path(shutil.copytree(folder, tmp_path / "model"))
    first = (await local_models.engine_greedy(folder, [1, 2, 3], 8))[0]
    _generation(suppress_tokens=[first])(silenced)
    assert first not in await local_models.engine_greedy(silenced, [1, 2, 3], 8)


def test_a_model_that_does_not_fit_in_memory_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        open_engine(folder, slots=10**12)


MACHINE = {  # files in which Linux tells the memory, in kB and in bytes
    "proc/meminfo": "MemTotal: 8192 kB\nMemFree: 64 kB\nMemAvailable: 4096 kB\n"
    "Buffers: 0 kB\nCached: 0 kB\nShmem: 0 kB\nActive: 0 kB\nInactive: 0 kB\n",
    "proc/self/cgroup": "0::/user/shell\n",
    "sys/fs/cgroup/user/memory.max": "2048000\n",
    "sys/fs/cgroup/user/memory.current": "1524000\n",
    "sys/fs/cgroup/user/memory.stat": "anon 1000000\ninactive_file 300000\nactive_file 200000\n",
    "sys/fs/cgroup/user/shell/memory.max": "max\n",
    "sys/fs/cgroup/user/shell/memory.current": "1000\n",
    "sys/fs/cgroup/user/cpu.max": "100000 100000\n",
    "sys/fs/cgroup/user/shell/cpu.max": "max 100000\n",
}


def test_available_memory_is_the_least_that_anybody_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path / "proc"))
    monkeypatch.setattr("pasta_async.backends.local.machine._ROOT", tmp_path)
    for name, content in MACHINE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert available_memory("cpu") == 1_024_000
    assert available_cores() == 1
    shutil.rmtree(tmp_path / "sys")
    assert available_memory("cpu") == 4096 * 1024
