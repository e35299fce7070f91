"""The ground of long commands: journals that survive an interruption, and many pieces of work at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.training.jobs import Journal, for_each


@pytest.mark.parametrize(
    "content",
    ["no JSON\n", "[1]\n", "{}\nno JSON\n", '{"a": "Hi"}\n{"ins'],
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_was(content: str, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequestError):
        Journal(path, {"of": "x"})
    assert path.read_text() == content


def test_a_journal_that_was_cut_in_its_first_line_begins_anew(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"of": ')
    with Journal(path, {"of": "x"}) as journal:
        journal.append({"a": 1})
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == [{"a": 1}]


def test_a_run_without_results_does_not_bind_the_next_to_its_settings(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    Journal(path, {"of": "a mistype"}, {"machine": "this"}).__exit__()
    with Journal(path, {"of": "x"}) as journal:
        journal.append({"a": 1})
    with pytest.raises(InvalidRequestError, match="'x' there, 'y' now"):
        Journal(path, {"of": "y"})
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == [{"a": 1}]


def test_a_run_says_where_it_ran_before_its_first_row(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    for machine, count in {"this": 2, "without an answer": 0, "that": 2}.items():
        with Journal(path, {"of": "x"}, {"machine": machine}) as journal:
            for row in range(count):
                journal.append({"a": row})
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == [
            {"machine": "this"},
            {"a": 0},
            {"a": 1},
            {"machine": "that"},
            {"a": 0},
            {"a": 1},
        ]


def test_one_command_at_a_time_writes_a_journal(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    with Journal(path, {"of": "x"}) as journal:
        with pytest.raises(InvalidRequestError, match="another command"):
            Journal(path, {"of": "x"})
        journal.append({"a": 1})
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == [{"a": 1}]


def test_a_row_that_was_cut_is_dropped_and_the_others_stay(tmp_path: Path):
    rows = [{"text": "漢字 \ud800"}, {"text": "two"}, {"text": "three"}]
    path = tmp_path / "rows.jsonl"
    with Journal(path, {"of": "x"}) as journal:
        for row in rows[:2]:
            journal.append(row)
    with path.open("ab") as file:
        file.write(b'{"text": "cu')
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == rows[:2]
        journal.append(rows[2])
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == rows


async def test_never_more_at_once_than_asked_for_and_in_order() -> None:
    started: list[int] = []
    under_way = most = 0

    async def work(item: int) -> None:
        nonlocal under_way, most
        started.append(item)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await for_each(range(10), work, 3)
    assert started == list(range(10))
    assert most == 3


async def test_the_first_failure_is_raised_alone_and_ends_the_others() -> None:
    started: list[int] = []
    never = asyncio.Event()

    async def work(item: int) -> None:
        started.append(item)
        if item == 2:
            raise BackendError("no more") from OSError("the cause")
        await never.wait()

    with pytest.raises(BackendError) as failed:
        await for_each(range(9), work, 3)
    assert isinstance(failed.value.__cause__, OSError)
    assert started == [0, 1, 2]
