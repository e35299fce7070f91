"""Engines side by side, in one process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from time import perf_counter

import pytest

from pasta_async.evals.engine import EngineSettings, Local, main, measure, table
from pasta_async.tokenizer import Tokenizer
from tests.helpers.commands_run import failed, status
from tests.pasta_tiny import PASTA_TINY

STEPS = 4
SMALL = f"--threads 1 --threads 3 --prefix 2 --steps {STEPS} --rounds 2 --cpus 1"


@pytest.mark.usefixtures("own_cache")  # for the model in int8
def test_engines_are_measured_side_by_side() -> None:
    settings = EngineSettings(model=str(PASTA_TINY), threads=(1, 3), prefix=2, steps=STEPS, rounds=2)
    engines = [Local(str(PASTA_TINY), "float32", 1), Local(str(PASTA_TINY), "int8", 1)]
    began = perf_counter()
    rows = [*measure(settings, engines)]
    elapsed = perf_counter() - began
    for engine in engines:
        engine.close()
    assert sorted((row["round"], row["engine"]) for row in rows) == [
        (number, engine) for number in (0, 1) for engine in ("local float32", "local int8")
    ]
    for row in rows:
        assert 1e-3 < row["first token ms"] < 1000 * elapsed
        for count in (1, 3):
            assert count * STEPS / elapsed < row[f"{count} threads, tokens/s"] < 1e6
    assert "| local float32 |" in table(rows)


def test_an_end_of_text_ends_no_measurement_early() -> None:
    engine = Local(str(PASTA_TINY), "float32", 1)
    tokenizer = Tokenizer.from_folder(PASTA_TINY)
    messages = [{"role": "user", "content": "A box starts with 6 shells. Follow the steps."}]
    engine.first_token(tokenizer.encode_chat(messages, {"pasta": False}))
    starts = tokenizer.encode("The")[:1]
    assert engine.threads(starts, 300) > 0, "it raises where a thread wrote fewer tokens"
    engine.close()


def test_an_engine_that_cannot_load_the_model_says_so(tmp_path: Path) -> None:
    assert "config.json is missing" in failed(main, f"{tmp_path} {SMALL}")


@pytest.mark.parametrize(
    "arguments",
    [
        "--llama-cpp a/model.gguf --llama-cpp b/model.gguf",  # rows have their names
        "--llama-cpp a.gguf --threads 17",
        "--llama-cpp a.gguf --threads 16 --steps 250",
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(arguments: str) -> None:
    assert status(main, f"no-folder {arguments}") == 2


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is there")
def test_without_llama_cpp_its_engine_is_refused(tmp_path: Path) -> None:
    assert "pasta_async[peers]" in failed(main, f"{PASTA_TINY} --llama-cpp {tmp_path}/a.gguf {SMALL}")
