from __future__ import annotations

import importlib.util
import json
from time import perf_counter
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run

from pasta_async.evals.engine import main
from pasta_async.evals.random_model import make_model

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["Two: apples are red and pears are green. That is all.", "Because of the words."]
STEPS = 4
TINY = f"--threads 1 --threads 3 --prefix 2 --steps {STEPS} --rounds 2 --cpus 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine")
    make_model(path / "model", TEXTS, shape="tiny", vocabulary=300)
    return path


def measured(path: Path, elapsed: float) -> dict[str, set[object]]:
    """What is there of each engine: plausible figures of a run that took so many seconds."""
    found: dict[str, set[object]] = {}
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "engine" not in row:
            continue
        what = row["what"]
        if what == "memory":
            assert 2**25 < row["bytes"] < 2**33, "a process with its libraries, and a tiny model"
        else:
            steps = STEPS if isinstance(what, int) else 1
            assert 1e-6 < row["seconds"] * steps < elapsed
        found.setdefault(row["engine"], set()).add(what)
    return found


def test_engines_are_measured_side_by_side(folder: Path) -> None:
    engines = ["float32", "int8", "transformers"]
    if importlib.util.find_spec("llama_cpp"):
        engines.append("Q8_0")
    options = " ".join(f"--engines {name}" for name in engines)
    began = perf_counter()
    run(main, f"{folder / 'model'} {options} {TINY} --out", folder / "engine.jsonl")
    found = measured(folder / "engine.jsonl", perf_counter() - began)
    refused(main, f"{folder / 'model'} {options} {TINY} --out {folder / 'engine.jsonl'}")
    assert len(found) == len(engines)
    for whats in found.values():
        assert whats == {"load", "memory", "first token", 1, 3}


def test_an_engine_that_cannot_load_the_model_says_so(tmp_path: Path) -> None:
    assert "UnsupportedModelError" in refused(main, f"{tmp_path} --engines float32 {TINY}")


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is there")
def test_without_llama_cpp_its_engines_are_refused(folder: Path) -> None:
    assert "pasta_async[peers]" in refused(main, f"{folder / 'model'} --engines Q8_0 {TINY}")
