"""Steps and their floor; the whole run is tested on the real server (tests/sglang)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from pasta_async.evals.hardware import HardwareSettings, Traffic, copy_bandwidth, decode_steps
from pasta_async.evals.random_model import make_model
from pasta_async.evals.simulator import EngineModel, SimulatedBackend, take_samples

if TYPE_CHECKING:
    from pathlib import Path

MODEL = EngineModel(step=0.01, sequence=0.001, context=2e-6, prefill=1e-4, round_trip=0.003)


async def test_threads_share_their_prefix_and_their_steps_are_put_beside_the_floor():
    backend = SimulatedBackend(MODEL)
    traffic = Traffic(weights=4_000_000, token=1000, bandwidth=1e9)
    steps = await decode_steps(backend, traffic, context=300, rounds=1)
    assert [(step["threads"], step["context"]) for step in steps] == [(count, 300) for count in (1, 2, 4, 8)]
    for step in steps:
        modelled = MODEL.seconds(step["threads"], step["threads"] * 312)
        assert step["step ms"] == pytest.approx(1000 * modelled, rel=0.02)
        assert step["floor ms"] == pytest.approx(4 + step["threads"] * 0.3)
    both = [
        (await take_samples(backend, [(1, 300)], rounds=1, shared=shared))[0].first_token
        for shared in (True, False)
    ]
    assert both[1] - both[0] == pytest.approx(299 * MODEL.prefill, rel=0.02)


def test_a_step_reads_all_weights_but_the_embeddings(tmp_path: Path):
    make_model(tmp_path, ["Some words to make tokens of."], shape="tiny", vocabulary=300)
    vocabulary = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    traffic = Traffic.of(tmp_path, width=4, bandwidth=1e9)
    file = (tmp_path / "model.safetensors").stat().st_size
    assert traffic.weights == pytest.approx(file - 4 * 64 * vocabulary, rel=0.02)
    assert traffic.token == 4 * 2 * 2 * 2 * 16  # keys and values of two layers, two heads of 16 numbers


def test_memory_is_copied_at_some_speed():
    assert 1e6 < copy_bandwidth("cpu", size=2**20) < 1e13


def test_a_server_without_its_models_folder_is_refused(tmp_path: Path):
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"id": "1", "messages": [{"role": "user", "content": "?"}], "written": "Yes."}\n')
    with pytest.raises(ValidationError):
        HardwareSettings(backend="http://127.0.0.1:9", documents=documents, out=tmp_path)
