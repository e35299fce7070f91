"""`annotate` against a real endpoint whose annotator errs in known ways."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotator_server import Annotator, running_annotator
from commands_run import status

from pasta_async.lang import check
from pasta_async.training.data.annotate import AnnotateSettings, annotate, main
from pasta_async.training.data.corpus import plain_record, read_records, write_records
from pasta_async.training.views import rough_tokens

RESPONSE = (
    "Bread needs flour, water and salt, and the patience of whoever bakes it in the morning.\n\n"
    "Soup needs a large pot and whatever the garden has to offer in the week of your guests.  \n"
    "A spoon of vinegar at the end wakes it up.\n\n"
    "Done."
)


@pytest.fixture
def annotator() -> Iterator[Annotator]:
    with running_annotator() as running:
        yield running


def settings(annotator: Annotator, folder: Path, *prompts: str, **more: Any) -> AnnotateSettings:
    """Settings for a run over some prompts, all with the same response."""
    data = folder / "data.jsonl"
    write_records(data, [plain_record([{"role": "user", "content": p}], RESPONSE) for p in prompts])
    usual = {"base_url": annotator.url, "model": "annotator", "in_flight": 2, "retries": 1}
    return AnnotateSettings.model_validate({"data": str(data), "out": folder / "out", **usual, **more})


def rejected(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "rejected.jsonl").read_text().splitlines()]


def test_a_right_reply_becomes_a_record_with_the_same_text(annotator: Annotator, tmp_path: Path) -> None:
    summary = annotate(settings(annotator, tmp_path, "one", "two"))
    records = list(read_records(tmp_path / "out" / "annotated.jsonl"))
    assert [record.prompt for record in records] == ["one", "two"]
    for record in records:
        assert record.document.text == RESPONSE
        assert check(record.written) == []
        assert record.annotator == "annotator"
        assert record.scores["text_speedup"] > 1
        for promise in record.document.promises:
            assert promise.chunk and promise.tokens
            assert 0 <= promise.tokens - rough_tokens(promise.chunk.text) < 10
    assert (summary["accepted"], summary["requests"], summary["completion_tokens"]) == (2, 2, 40)
    assert summary["with_promises"] == 1
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["accepted"] == 2


@pytest.mark.parametrize(
    ("mark", "code"),
    [("text", "text-changed"), ("cut", "reply-cut")],
)
def test_a_wrong_reply_is_told_what_is_wrong_and_tried_again(
    annotator: Annotator, tmp_path: Path, mark: str, code: str
) -> None:
    summary = annotate(settings(annotator, tmp_path, f"[{mark}]"))
    assert (summary["accepted"], summary["requests"]) == (1, 2)
    assert summary["reasons"] == {code: 1}
    first, second = annotator.conversations
    assert second[: len(first)] == first
    assert code in second[-1]["content"]


def test_what_stays_wrong_is_put_aside_with_its_reason(annotator: Annotator, tmp_path: Path) -> None:
    summary = annotate(settings(annotator, tmp_path, "fine", "[topic] [always]", tries=3))
    assert (summary["accepted"], summary["rejected"], summary["requests"]) == (1, 1, 4)
    (row,) = rejected(tmp_path)
    assert row["record"]["messages"][0]["content"] == "[topic] [always]"
    assert "topic-long" in row["reasons"][0]
    assert "four words and more" in row["reply"]


def test_short_answers_stay_plain_without_a_request(annotator: Annotator, tmp_path: Path) -> None:
    run_settings = settings(annotator, tmp_path)
    write_records(Path(run_settings.data), [plain_record([{"role": "user", "content": "one"}], "Short.")])
    summary = annotate(run_settings)
    assert (summary["accepted"], summary["unasked"], annotator.requests) == (1, 1, [])
    assert next(read_records(tmp_path / "out" / "annotated.jsonl")).document.promises == ()


def test_no_reply_that_arrived_is_paid_for_again(annotator: Annotator, tmp_path: Path) -> None:
    """The process ends in the middle, at a known place: two requests wait, the others are answered."""
    run_settings = settings(annotator, tmp_path, *(f"{k} [text]" if k % 3 else str(k) for k in range(8)))
    command = [sys.executable, "-m", "pasta_async.training.data.annotate", "--in-flight", "2"]
    command += ["--data", run_settings.data, "--out", str(run_settings.out)]
    command += ["--base-url", annotator.url, "--model", "annotator"]
    annotator.answer_at_most = 5
    process = subprocess.Popen(command)
    annotator.wait_for_requests(7)  # a worker asks when its last reply is on the disk
    process.kill()
    process.wait()
    journal = (run_settings.out / "journal.jsonl").read_bytes()
    assert journal.count(b"\n") == 1 + 5

    annotator.release()
    summary = annotate(run_settings)
    assert (summary["accepted"], summary["resumed"], summary["requests"]) == (8, 5, 8)
    assert (run_settings.out / "journal.jsonl").read_bytes().startswith(journal)
    prompts = annotator.prompts()
    lost = prompts.total() - summary["requests"] - summary["resumed"]
    assert lost == 2  # the two that nobody answered before the end


def test_a_request_that_the_endpoint_refuses_is_asked_again_next_time(
    annotator: Annotator, tmp_path: Path
) -> None:
    summary = annotate(settings(annotator, tmp_path, "one", "[400]"))
    assert (summary["accepted"], summary["unanswered"]) == (1, 1)
    assert "400" in rejected(tmp_path)[0]["reasons"][0]
    assert annotate(settings(annotator, tmp_path, "one", "[400]"))["requests"] == 1


def test_the_command_line_refuses_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(main, "--data", "x.jsonl", "--out", tmp_path) == 2
    assert "--heuristic" in capsys.readouterr().err
    assert "x.jsonl" in str(status(main, "--data", "x.jsonl", "--out", tmp_path, "--heuristic"))


def test_structure_alone_needs_no_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = "\n".join(f"{k}. {'word ' * 30}here" for k in range(1, 4))
    data = tmp_path / "data.jsonl"
    write_records(data, [plain_record([{"role": "user", "content": "List."}], items)])
    assert status(main, "--data", data, "--out", tmp_path / "out", "--heuristic") == 0
    (record,) = read_records(tmp_path / "out" / "annotated.jsonl")
    assert (record.document.text, len(record.document.promises)) == (items, 3)
    assert record.annotator == "structure:points"
    summary = json.loads(capsys.readouterr().out)
    assert [summary[name] for name in ("accepted", "with_promises", "mean_promises")] == [1, 1.0, 3.0]
