"""`annotate` against a real endpoint whose annotator errs in known ways, and the check of its replies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.lang import Chunk, Document, Promise, Sync, parse
from pasta_async.training.data.annotate import AnnotateSettings, annotate, main
from pasta_async.training.data.annotate_endpoint import EXAMPLES, check_reply, first_prompt
from pasta_async.training.data.corpus import Record, plain_record, read_records, write_records
from pasta_async.training.endpoint import Endpoint
from pasta_async.training.jobs import Journal
from pasta_async.training.views import Mark, insert_tags, rough_tokens
from tests.helpers.annotator_server import Annotator, running_annotator
from tests.helpers.commands_run import failed, status

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
    usual = {"base_url": annotator.url, "model": "annotator", "together": 2, "retries": 1}
    return AnnotateSettings.model_validate({"data": str(data), "out": folder / "out", **usual, **more})


def rejected(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "rejected.jsonl").read_text().splitlines()]


def test_a_right_reply_becomes_a_record_with_the_same_text(annotator: Annotator, tmp_path: Path) -> None:
    summary = annotate(settings(annotator, tmp_path, "one", "two"))
    records = list(read_records(tmp_path / "out" / "annotated.jsonl"))
    assert [record.prompt for record in records] == ["one", "two"]
    for record in records:
        assert record.document.text == RESPONSE
        assert not parse(record.written).diagnostics
        assert record.annotator == "annotator"
        assert record.scores["text_speedup"] > 1
        for promise in record.document.promises:
            assert promise.chunk and promise.tokens
            assert 0 <= promise.tokens - rough_tokens(promise.chunk.text) < 10
    assert (summary["accepted"], summary["requests"], summary["completion_tokens"]) == (2, 2, 40)
    assert summary["with_promises"] == 1
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["accepted"] == 2


async def test_a_reply_is_in_the_journal_before_the_run_ends(annotator: Annotator, tmp_path: Path) -> None:
    run = settings(annotator, tmp_path)
    messages = first_prompt(plain_record([{"role": "user", "content": "one"}], RESPONSE))
    with Journal(tmp_path / "journal.jsonl", {"of": "a test"}) as journal:
        async with Endpoint(run.base_url, run.model, run, journal) as endpoint:
            reply = await endpoint.complete(messages)
            *_, line = journal.path.read_text().splitlines()
    assert json.loads(line)["reply"]["text"] == reply.text


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
    assert (summary["accepted"], summary["rejected"]) == (1, 1)
    assert (summary["requests"], summary["resumed"]) == (3, 0)  # a third try would ask for it again
    (row,) = rejected(tmp_path)
    assert row["record"]["messages"][0]["content"] == "[topic] [always]"
    assert "topic-long" in row["reasons"][0]
    assert "four words and more" in row["reply"]


@pytest.mark.parametrize("written", ["Short.", '<promise topic="a" tokens="10"/><async>Short.</async>'])
def test_short_answers_stay_plain_without_a_request(
    annotator: Annotator, tmp_path: Path, written: str
) -> None:
    run_settings = settings(annotator, tmp_path)
    record = Record(id="one", messages=({"role": "user", "content": "one"},), written=written)
    write_records(Path(run_settings.data), [record])
    summary = annotate(run_settings)
    assert (summary["accepted"], summary["unasked"], annotator.requests) == (1, 1, [])
    [annotated] = read_records(tmp_path / "out" / "annotated.jsonl")
    assert (annotated.document.promises, annotated.document.text) == ((), "Short.")


def test_a_request_that_the_endpoint_refuses_is_asked_again_next_time(
    annotator: Annotator, tmp_path: Path
) -> None:
    summary = annotate(settings(annotator, tmp_path, "one", "[400]"))
    assert (summary["accepted"], summary["unanswered"]) == (1, 1)
    assert "400" in rejected(tmp_path)[0]["reasons"][0]
    again = annotate(settings(annotator, tmp_path, "one", "[400]"))
    assert (again["requests"], again["resumed"]) == (1, 1)


def test_the_command_line_refuses_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(main, "--data", "x.jsonl", "--out", tmp_path) == 2
    assert "--by structure" in capsys.readouterr().err
    assert status(main, "--data", "x.jsonl", "--out", tmp_path, "--by", "likelihood") == 2
    assert "--by likelihood needs --model" in capsys.readouterr().err
    assert "x.jsonl" in failed(main, "--data", "x.jsonl", "--out", tmp_path, "--by", "structure")


def test_structure_alone_needs_no_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = "\n".join(f"{k}. {'word ' * 30}here" for k in range(1, 4))
    data = tmp_path / "data.jsonl"
    write_records(data, [plain_record([{"role": "user", "content": "List."}], items)])
    assert status(main, "--data", data, "--out", tmp_path / "out", "--by", "structure") == 0
    (record,) = read_records(tmp_path / "out" / "annotated.jsonl")
    assert (record.document.text, len(record.document.promises)) == (items, 3)
    assert record.annotator == "structure:points"
    summary = json.loads(capsys.readouterr().out)
    assert [summary[name] for name in ("accepted", "with_promises", "mean_promises")] == [1, 1.0, 3.0]


def test_every_chunk_ends_with_an_empty_line_where_that_is_asked_for(tmp_path: Path) -> None:
    words = "word " * 30
    answers = [
        f"Two:\n- {words}one.\n- {words}two.\n\nOverall, both.",  # the last one looks like the others
        f"1. {words}one.\n\n2. {words}two.",
    ]
    data = tmp_path / "data.jsonl"
    write_records(data, [plain_record([{"role": "user", "content": "List."}], answer) for answer in answers])
    options = ("--by", "structure", "--cut", "lists", "--blank-lines")
    assert status(main, "--data", data, "--out", tmp_path / "out", *options) == 0
    tight, loose = [record.document for record in read_records(tmp_path / "out" / "annotated.jsonl")]
    assert tight.text == f"Two:\n- {words}one.\n\n- {words}two.\n\nOverall, both."
    assert loose.text == answers[1] + "\n\n"
    for document in (tight, loose):
        assert [p.chunk.text for p in document.promises if p.chunk] == [
            f"{words}one.\n\n",
            f"{words}two.\n\n",
        ]
        assert parse(document.format()) == document


# The check of a reply -------------------------------------------------------------------------------------


ORIGINAL = (
    "Both are old.\n\nTea is from China.  Many drink it.\n\nCoffee is from Ethiopia.\n\nSo take your pick."
)
RIGHT = (
    'Both are old.\n\n<promise topic="tea" tokens="10"/><async>Tea is from China.  Many drink it.</async>\n\n'
    '<promise topic="coffee" tokens="10"/><async>Coffee is from Ethiopia.</async>'
    "<sync/>\n\nSo take your pick."
)


def accepted(reply: str, original: str = ORIGINAL) -> Document:
    checked = check_reply(original, reply)
    assert isinstance(checked, Document), checked
    return checked


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"\n```\n{RIGHT}\n```\n", id="in a code fence"),
        pytest.param(" ".join(RIGHT.split()), id="line breaks lost"),
        pytest.param(RIGHT.replace("async>", "async>\n").replace("</async>", " </async>"), id="padded"),
        pytest.param(RIGHT.replace('"/><async>', '"/>\n<async>'), id="apart"),
        pytest.param(RIGHT.replace('tokens="10"', 'tokens="7000"'), id="wrong estimate"),
        pytest.param(RIGHT.replace(' tokens="10"', ""), id="no estimate"),
        pytest.param(RIGHT.replace('"', "'"), id="other quotes"),
        pytest.param(RIGHT.replace("<sync/>\n\n", "\n\n<sync/>"), id="sync further on"),
    ],
)
def test_white_space_estimates_and_the_form_of_tags_are_put_right(reply: str) -> None:
    assert accepted(reply).format() == RIGHT


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (RIGHT.replace("old", "ancient"), "text-changed"),
        (RIGHT + " Enjoy!", "text-changed"),
        ("Here you are:\n\n" + RIGHT, "text-changed"),
        ("", "text-changed"),
        (RIGHT.replace('topic="tea"', 'topic="all about green tea"'), "topic-long"),
        (RIGHT.replace('topic="tea" ', ""), "topic-missing"),
        (RIGHT.replace("Many drink it.</async>", "Many drink it."), "promise-nested"),
        (RIGHT.replace("<sync/>", "<sync/><sync/>"), "sync-idle"),
        (RIGHT.replace("So take", '<promise topic="x" tokens="10"/>So take'), "promise-open"),
        (RIGHT.replace("So take", '<promise topic="x" tokens="10"/><async> </async>So take'), "chunk-empty"),
    ],
)
def test_what_is_wrong_is_named_by_its_code(wrong: str, code: str) -> None:
    checked = check_reply(ORIGINAL, wrong)
    assert not isinstance(checked, Document)
    assert all(problem.code in problem.message for problem in checked)
    assert code in [problem.code for problem in checked]


def test_the_annotator_is_shown_where_its_text_differs() -> None:
    checked = check_reply(ORIGINAL, RIGHT.replace("old", "ancient"))
    assert not isinstance(checked, Document)
    (problem,) = checked
    assert "Both are old." in problem.message and "Bothareancient" in problem.message


@st.composite
def annotated(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and a right reply to it with white space of its own."""
    words = draw(st.lists(st.sampled_from(["tea", "<sync/>", "a.", "é", "<", "\\"]), min_size=1, max_size=12))
    spaces = st.sampled_from([" ", "\n", "\n\n", "  \n", "\t"])
    text = "".join(word + draw(spaces) for word in words)
    starts = [0, *(k + 1 for k, c in enumerate(text) if c.isspace() and not text[k + 1 : k + 2].isspace())]
    starts = [k for k in starts if k < len(text)]
    chosen = sorted(draw(st.sets(st.sampled_from(starts), max_size=4)))
    marks = [Mark(k, k + len(text[k:].split()[0]), Promise("x", 10, Chunk())) for k in chosen]
    if marks and draw(st.booleans()):
        marks.insert(1, Mark(marks[0].end, marks[0].end, Sync()))
    reply = insert_tags(text, marks).format()
    return text, reply.replace("\n", " ") if draw(st.booleans()) else reply


@given(annotated())
def test_removing_the_tags_of_what_passes_gives_the_original(case: tuple[str, str]) -> None:
    text, reply = case
    document = accepted(reply, text)
    assert document.text == text
    assert parse(document.format()) == document
    assert not parse(document.format()).diagnostics


@pytest.mark.parametrize(("prompt", "written"), EXAMPLES)
def test_our_examples_pass_their_own_check(prompt: str, written: str) -> None:
    assert accepted(written, parse(written).text).format() == written


def test_the_prompt_shows_our_examples_and_then_the_response() -> None:
    messages = first_prompt(plain_record([{"role": "user", "content": "Tea?"}], "Yes, <sync/>."))
    assert [message["role"] for message in messages] == [
        "system",
        *("user", "assistant") * len(EXAMPLES),
        "user",
    ]
    assert messages[-1]["content"] == "PROMPT:\nTea?\n\nRESPONSE:\nYes, <\\sync/>."
