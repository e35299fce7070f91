"""evals.plans: items and their gold values, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_async import Client, InvalidRequestError
from pasta_async.evals.plans import (
    METHODS,
    is_right,
    main,
    measure,
    plan_of,
    read_items,
    summarise,
)
from pasta_async.testing import RandomBackend
from tests.helpers.commands_run import failed


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two items in BFCL's form; the second has one argument, so it does not count."""
    fields = {
        "name": {"type": "string", "description": "Its name."},
        "size": {"type": "float"},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "extra": {"type": "dict", "properties": {"x": {"type": "integer"}}},
        "left_out": {"type": "string"},
    }
    rows: list[dict[str, Any]] = []
    for name, required in (("first", ["name", "size", "kind", "extra"]), ("second", ["name"])):
        function = {
            "name": "f",
            "description": "Does.",
            "parameters": {"properties": fields, "required": required},
        }
        rows.append({"id": name, "question": [[{"role": "user", "content": "Do."}]], "function": [function]})
    gold = {"name": ["Ann"], "size": [1.5], "kind": ["a"], "extra": [{"x": [3]}], "left_out": ["x", ""]}
    answers = [{"id": row["id"], "ground_truth": [{"f": gold}]} for row in rows]
    (tmp_path / "possible_answer").mkdir()
    for file, lines in (
        ("BFCL_v4_simple_python.json", rows),
        ("possible_answer/BFCL_v4_simple_python.json", answers),
    ):
        (tmp_path / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_items_are_calls_with_two_arguments_at_least(data: Path) -> None:
    [item] = read_items(data, "simple_python", 10)
    assert list(item.fields) == ["name", "size", "kind", "extra"]
    assert item.fields["size"] == {"type": "number"}
    assert item.gold.keys() == item.fields.keys()
    assert "Its name." in item.prompt


def test_plans_differ_in_what_is_seen(data: Path) -> None:
    [item] = read_items(data, "simple_python", 10)
    assert len(plan_of(item, "object").holes) == 1
    assert plan_of(item, "sequence").seen["kind"] == {"name", "size"}
    assert set(plan_of(item, "parallel").seen.values()) == {frozenset()}
    assert plan_of(item, "after").seen["kind"] == plan_of(item, "after").seen["size"] == {"name"}
    after = {hole.name: hole.after for hole in plan_of(item, "together").holes}
    assert after == {"name": (), "size": ("name",), "kind": (), "extra": ("kind",)}


def test_the_values_of_an_invoice_stand_in_its_text() -> None:
    items = read_items(Path(), "invoices", 6)
    assert items == read_items(Path(), "invoices", 6) and len({item.prompt for item in items}) == 6
    for item in items:
        for values in item.gold.values():
            assert (f"{values[0]:.2f}" if isinstance(values[0], float) else values[0]) in item.prompt
        assert len(plan_of(item, "parallel").holes) == len(item.fields) == 8


def test_values_are_compared_by_bfcls_rules() -> None:
    assert is_right("New York, NY", ["new york NY"])
    assert is_right([1, 2.0], [[1.0, 2]])
    assert is_right({"x": 3}, [{"x": [3, 4]}])
    assert not is_right(True, [1])
    assert not is_right({"x": 3}, [{"x": [4]}])
    assert not is_right([1], [[1, 2]])


async def test_each_item_is_filled_by_each_method_once_all_are_warm(data: Path) -> None:
    items = read_items(data, "simple_python", 10) + read_items(data, "profiles", 1)
    backend = RandomBackend(1)
    async with Client(backend) as client:
        answers = await measure(client, items)
        tokenizer = (await client.connect()).tokenizer
    assert [row["items"] for row in summarise(items, answers)] == [len(items)] * len(METHODS)
    prompts = [tokenizer.decode(request.ids) for request in backend.requests]
    warms_up = ["fruit" in prompt for prompt in prompts]
    assert warms_up == sorted(warms_up, reverse=True)
    warm_ups = prompts[: warms_up.count(True)]
    assert all(any(f"({method})" in prompt for prompt in warm_ups) for method in METHODS)


async def test_free_text_is_neither_right_nor_wrong() -> None:
    items = read_items(Path(), "profiles", 2)
    async with Client(RandomBackend(1)) as client:
        rows = summarise(items, await measure(client, items))
    assert all(row["right, %"] is None and row["sooner"]["value"] > 0 for row in rows)


def test_missing_data_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        read_items(tmp_path, "simple_python", 10)
    assert "live_simple" in failed(main, f"--backend local: --data {tmp_path} --subset live_simple")
