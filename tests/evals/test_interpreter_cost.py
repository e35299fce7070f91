from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from pasta_async.evals import interpreter_cost

if TYPE_CHECKING:
    from pathlib import Path

SMALL = "--answers 2 --together 1 2 --rounds 1 --threads 80 --prompt-words 10 1010"


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The raw figures of one small run: where, tokens one at a time, two at a time, memory twice."""
    out: Path = tmp_path_factory.mktemp("cost") / "cost.jsonl"
    interpreter_cost.main([*shlex.split(SMALL), "--out", str(out)])
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_where_it_ran_is_written_down(figures: list[dict[str, Any]]):
    assert figures[0]["cores"] >= 1
    assert figures[0]["python"]


def test_the_cost_of_a_token_is_near_its_aim(figures: list[dict[str, Any]]):
    for cost, together in zip(figures[1:3], (1, 2), strict=True):
        assert cost["together"] == together
        assert cost["tokens"] > 2 * 9 * 200
        assert cost["events"] > cost["tokens"]
        assert 0 < cost["backend"] < cost["total"]
        assert cost["total"] < 8 * 25  # the aim, many times over: this machine may be busy


def test_the_memory_of_an_open_thread_is_within_its_aim(figures: list[dict[str, Any]]):
    for cost in figures[3:5]:
        assert (cost["threads"], cost["answers"]) == (80, 10)
        assert 0 < cost["backend"] < cost["allocated"] < 50_000
        assert cost["resident"] > 0


def test_a_long_prompt_costs_each_thread_its_ids(figures: list[dict[str, Any]]):
    short, long = figures[3:5]
    assert long["prompt_tokens"] - short["prompt_tokens"] == 1000
    assert 8_000 <= long["allocated"] - short["allocated"] < 16_000
