"""The micro-benchmarks, at a small size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async.evals.costs import main

if TYPE_CHECKING:
    from pathlib import Path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Where it ran, tokens one at a time, two at a time, a crowd."""
    out = tmp_path_factory.mktemp("cost") / "cost.jsonl"
    run(main, "interpreter --answers 2 --together 1 --together 2 --rounds 1 --crowd 2000 --out", out)
    return rows(out)


def test_the_cost_of_a_token_is_near_its_aim(interpreter: list[dict[str, Any]]):
    assert interpreter[0]["cores"] >= 1
    for cost, together in zip(interpreter[1:3], (1, 2), strict=True):
        assert cost["answers at once"] == together
        assert cost["events"] > cost["tokens"] > 2 * 9 * 200
        assert 0 < cost["us a token"] < 8 * 25  # the aim, many times over


def test_a_crowd_of_threads_is_open_at_once_and_needs_little_memory(interpreter: list[dict[str, Any]]):
    crowd = interpreter[3]
    assert (crowd["open threads"], crowd["answers"]) == (2000, 250)
    assert 1 < crowd["KB a thread"] < 50
    assert crowd["CPU s to open them"] > 0
    assert crowd["CPU s to leave them"] > 0


def test_many_streams_of_the_server_come_to_their_end(tmp_path: Path):
    out = tmp_path / "server.jsonl"
    run(main, "server --streams 20 --latency 0.001 --out", out)
    _, streams = rows(out)
    assert streams["streams"] == streams["complete"] == 20
    assert 0 < streams["first text s, p50"] <= streams["whole s, p50"]


def test_an_unknown_benchmark_is_refused():
    assert refused(main, "everything") == "2"
