from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run

from pasta_async.evals.engine import main
from pasta_async.evals.random_model import make_model
from pasta_async.training.corpus import Record, write_records

if TYPE_CHECKING:
    from pathlib import Path

ANSWERS = {
    "Which fruits?": 'Two: <promise topic="a" tokens="4"/><async>Apples are red.</async> and '
    '<promise topic="b" tokens="4"/><async>pears are green.</async><sync/> That is all.',
    "Why?": "Because of the words.",
}
TINY = "--threads 1 --threads 3 --prefix 20 --steps 4 --rounds 2 --cpus 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine")
    make_model(path / "model", ANSWERS.values(), shape="tiny", vocabulary=300)
    records = [
        Record(id=prompt, messages=({"role": "user", "content": prompt},), written=written)
        for prompt, written in ANSWERS.items()
    ]
    write_records(path / "documents.jsonl", records)
    return path


def measured(path: Path) -> dict[str, set[object]]:
    found: dict[str, set[object]] = {}
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "engine" in row:
            assert row["bits" if row["what"] == "bits" else "seconds"] > 0
            found.setdefault(row["engine"], set()).add(row["what"])
    return found


def test_engines_are_measured_side_by_side(folder: Path) -> None:
    engines = ["float32", "int8"]
    if importlib.util.find_spec("llama_cpp"):
        engines.append("Q8_0")
    options = " ".join(f"--engines {name}" for name in engines)
    (folder / "text").write_text(" ".join(ANSWERS), encoding="utf-8")
    run(
        main,
        f"{folder / 'model'} {options} {TINY}",
        *("--documents", folder / "documents.jsonl", "--text", folder / "text"),
        *("--out", folder / "engine.jsonl"),
    )
    found = measured(folder / "engine.jsonl")
    assert len(found) == len(engines)
    for whats in found.values():
        assert whats == {"load", "memory", "first token", 1, 3, "answer", "bits"}


def test_an_engine_that_cannot_load_the_model_says_so(tmp_path: Path) -> None:
    assert "UnsupportedModelError" in refused(main, f"{tmp_path} --engines float32 {TINY}")


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is there")
def test_without_llama_cpp_its_engines_are_refused(folder: Path) -> None:
    assert "pasta_async[peers]" in refused(main, f"{folder / 'model'} --engines Q8_0 {TINY}")
