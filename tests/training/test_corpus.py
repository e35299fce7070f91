"""The format of annotated answers, its readers, the leakage filter, and lengths in tokens."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pasta_async
from pasta_async import InvalidRequestError
from pasta_async.lang import parse
from pasta_async.testing import ScriptedBackend
from pasta_async.training.data.corpus import (
    LeftOut,
    Record,
    SourceSettings,
    main,
    plain_record,
    read_prompts,
    read_records,
    write_records,
)
from pasta_async.training.data.leakage import LeakageFilter
from pasta_async.training.views import critical_path
from tests.helpers.commands_run import failed, status, write_rows

CHAT = {
    "conversations": [
        {"from": "system", "value": "Be brief.", "weight": None},
        {"from": "human", "value": "Tea?", "weight": 0.0},
        {"from": "gpt", "value": "Yes, <sync/> please.", "weight": 1.0},
    ]
}
"""A row in the form of SlimOrca."""


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# --- records


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    record = Record(
        id="1",
        messages=tuple(user("Tea?")),
        written='<promise topic="a" tokens="10"/><async>Yes\u2028.</async>',
        source="s",
        annotator="a",
        scores={"x": 0.1},
    )
    plain = plain_record(user("Tags?"), "Write <sync/>.")
    assert write_records(tmp_path / "a" / "records.jsonl", [record, plain]) == 2
    assert list(read_records(tmp_path / "a" / "records.jsonl")) == [record, plain]
    assert plain.document.text == "Write <sync/>."
    assert plain.prompt == "Tags?"


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"id": "1", "messages": [], "written": ""}, "records.jsonl:2: messages"),
        ({"id": "1", "messages": [{"role": "robot", "content": ""}], "written": ""}, "robot"),
        ({"id": "1", "messages": user("x"), "written": "", "more": 1}, "records.jsonl:2: more"),
        ({"id": "0", "messages": user("x"), "written": ""}, "records.jsonl:2"),
        ([], "records.jsonl:2: "),
    ],
)
def test_what_is_no_record_is_told_with_its_line(tmp_path: Path, row: Any, place: str) -> None:
    path = write_rows(tmp_path / "records.jsonl", [{"id": "0", "messages": user("x"), "written": ""}, row])
    with pytest.raises(InvalidRequestError) as caught:
        list(read_records(path))
    assert place in str(caught.value)


# --- readers


def read(data: Path | str, **settings: Any) -> tuple[list[Record], LeftOut]:
    """The records of a source, and what is left out."""
    return SourceSettings(data=str(data), **settings).read()


def turn(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("row", "messages", "answer"),
    [
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, user("Add.\n\n1 2"), "3"),
        ({"instruction": "Add.", "context": "1 2", "response": "3"}, user("Add.\n\n1 2"), "3"),
        ({"instruction": "Add.", "input": "", "output": "3"}, user("Add."), "3"),
        ({"id": None, "messages": None, "instruction": "Add.", "output": "3"}, user("Add."), "3"),
        ({"question": "Why?", "system": "Be brief.", "response": "So."}, [SYSTEM, *user("Why?")], "So."),
        ({"question": "Why?", "system_prompt": "Be brief.", "response": "So."},
         [SYSTEM, *user("Why?")], "So."),
        ({"messages": [*user("a"), turn("assistant", "b"), *user("c"), turn("assistant", "d")]},
         [*user("a"), turn("assistant", "b"), *user("c")], "d"),
        ({**CHAT, "conversations": CHAT["conversations"][1:], "system": "Be a pirate."},
         [{"role": "system", "content": "Be a pirate."}, *user("Tea?")], "Yes, <sync/> please."),
        ({**CHAT, "system": "Be a pirate."}, [SYSTEM, *user("Tea?")], "Yes, <sync/> please."),
        (CHAT, [SYSTEM, *user("Tea?")], "Yes, <sync/> please."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "plain"])
def test_rows_of_many_forms_become_records(
    tmp_path: Path, name: str, row: dict[str, Any], messages: list[dict[str, str]], answer: str
) -> None:
    """An existing file is never taken for the name of a data set."""
    content = ("\ufeff" + json.dumps(row)).encode()  # as editors on Windows write it
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (record,), left_out = read(tmp_path / name)
    assert list(record.messages) == messages
    assert record.document.text == answer
    assert record.source == name
    assert not left_out


def test_records_are_read_as_they_are_and_ids_are_kept(tmp_path: Path) -> None:
    record = plain_record(user("x"), "y", id="mine", source="elsewhere", form="y")
    write_records(tmp_path / "r.jsonl", [record])
    assert read(tmp_path / "r.jsonl")[0] == [record]
    ((other,), _) = read(write_rows(tmp_path / "d.jsonl", [{"id": 7, "prompt": "x", "answer": "y"}]))
    assert other.id == "7"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": "x", "answer": "y"}, "messages"),
        ({"instruction": "x"}, "no answer"),
        ({"instruction": ["x"], "output": "y"}, "instruction"),
        ({"instruction": "x", "output": "y", "input": {"a": 1}}, "input"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "messages"),
        ({"conversations": "x"}, "conversations"),
        ({"conversations": [{"from": "robot", "value": "x"}, *CHAT["conversations"]]}, "robot"),
        ({"messages": [*user("x"), turn("assistant", None)]}, "content"),
        ({"written": "x"}, "messages"),
        ({"id": "1", "messages": user("x"), "form": "x"}, "no answer"),
        ({"instruction": "x", "output": " "}, "no answer"),
        ({"id": "1", "messages": [turn("user", ["x"])], "written": "y"}, "content is text"),
        ({"id": "1", "messages": user("x"), "written": "y", "form": "("}, "no regular expression"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_and_named_and_the_rest_is_imported(
    tmp_path: Path, row: Any, told: str
) -> None:
    good = {"instruction": "Add.", "output": "3\u2028"}
    data = write_rows(tmp_path / "data.jsonl", [good, row, {**good, "output": "4"}])
    records, left_out = read(data)
    assert [record.document.text for record in records] == ["3\u2028", "4"]
    assert [*left_out] == ["unusable"]
    assert left_out["unusable"]["rows"] == 1
    place = left_out["unusable"]["first"]
    assert place.startswith(f"{data}:2: ")
    assert told in place


@pytest.mark.parametrize("line", ["{broken", "[1]"])
def test_a_line_that_is_no_object_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(f'\n{{"instruction": "Add.", "output": "3"}}\r\n\n{line}\n')
    with pytest.raises(InvalidRequestError, match=r"data\.jsonl:4: "):
        read(tmp_path / "data.jsonl")


def test_prompts_can_be_imported_alone(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "x"}, {"prompt": "y", "output": "z"}, {"prompt": "y", "output": "another"}]
    rows.append({"id": "f", "messages": user("w"), "form": "W"})
    data = write_rows(tmp_path / "data.jsonl", rows)
    assert status(main, "--prompts-only", "--data", data, "--out", tmp_path / "out.jsonl") == 0
    records = list(read_records(tmp_path / "out.jsonl"))
    assert [(record.prompt, record.written, record.form) for record in records] == [
        ("x", "", ""),
        ("y", "", ""),
        ("w", "", "W"),
    ]


def test_a_source_without_a_usable_row_is_an_error_that_says_why(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", [{"instruction": "x"}, {"instruction": "y"}])
    message = failed(main, "--data", data, "--out", tmp_path / "out.jsonl")
    assert "no answer" in message and "data.jsonl:1" in message
    assert not (tmp_path / "out.jsonl").exists()


def test_a_packed_file_that_was_cut_off_is_told_by_its_name(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"instruction": f"{n}", "output": "x" * n}) + "\n" for n in range(400))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(rows.encode())[:-20])
    assert "cut.jsonl.gz" in failed(main, "--data", tmp_path / "cut.jsonl.gz", "--out", tmp_path / "out")


def test_rows_that_share_an_id_are_kept_unless_they_say_the_same(tmp_path: Path) -> None:
    rows = [{"id": "qa", "instruction": f"Why {n}?", "output": "So."} for n in (0, 1, 1, 2)]
    data = write_rows(tmp_path / "data.jsonl", [*rows, {**rows[0], "id": "other"}])
    assert status(main, "--data", data, "--out", tmp_path / "out.jsonl") == 0
    records = list(read_records(tmp_path / "out.jsonl"))  # refuses an id that is there twice
    assert [record.prompt for record in records] == ["Why 0?", "Why 1?", "Why 2?"]
    assert records[0].id == "qa"


@pytest.mark.filterwarnings("default")  # what pandas and pyarrow have to say is theirs
def test_data_sets_are_read_by_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets: Any = importlib.import_module("datasets")
    answer = {"from": "gpt", "value": "No.", "weight": 1.0}
    rows = [CHAT, {"conversations": [*CHAT["conversations"][:2], answer]}]
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "set" / "train.parquet"))
    records, _ = read(tmp_path / "set")
    assert [record.document.text for record in records] == ["Yes, <sync/> please.", "No."]
    assert records[0].messages[0] == {"role": "system", "content": "Be brief."}
    with pytest.raises(InvalidRequestError, match="nowhere"):
        read(tmp_path / "set", split="nowhere")


def test_a_hub_out_of_reach_is_a_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pasta_async.training.data.corpus", "--data", "Open-Orca/SlimOrca"]
    command += ["--out", "x.jsonl"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Open-Orca/SlimOrca" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x.jsonl").exists()


# --- leakage

EVALUATION = (
    "What is the capital of France?",
    "Write a short poem about the sea in winter, in four lines.",
    "How do I remove a red wine stain from a cotton tablecloth?",
    "Explain the difference between a virus and a bacterium to a child of ten.",
    "Give me a recipe for vegetable soup.",
    "Summarise the plot of Hamlet in three sentences, and name two of its themes.",
    "Who wrote The Tempest?",
    "List five ways in which a small company can save energy in its office.",
    "Translate this sentence into Spanish: The train leaves at nine.",
    "Plan a weekend in Lisbon for a family with two children who like trams.",
)  # fmt: skip
LEAKS = (
    ("exact", "what is the capital of FRANCE"),
    ("exact", "  Who wrote \u201cThe Tempest\u201d?!"),
    ("exact", "Give me a recipe\nfor vegetable soup"),
    ("near", "Write a short poem about the sea in winter, in 4 lines."),
    ("near", "How do I remove red wine stains from a cotton tablecloth?"),
    ("near", "Explain the diference between a virus and a bacterium to a child of ten"),
    ("near", "List five ways in which a small company can save energy in the office."),
    ("near", "Please give me a recipe for vegetable soup."),
    ("inside", "You are a helpful travel agent who knows Europe well. Plan a weekend in Lisbon for a family "
     "with two children who like trams. Answer as a table with a column for each day, in 200 words."),
    ("inside", "Read the question and answer it in German.\n\nQuestion: Explain the difference between a "
     "virus and a bacterium to a child of ten.\n\nThink about it step by step before you write anything."),
)  # fmt: skip
OTHERS = (
    "What is the capital of Spain?",
    "What is the currency of France?",
    "Write a short poem about the mountains in spring, in eight lines.",
    "How do I remove a coffee stain from a wool carpet?",
    "Explain the difference between a planet and a star to a child of ten.",
    "Give me a recipe for apple pie.",
    "Summarise the plot of Macbeth in five sentences.",
    "Who wrote The Trial?",
    "List ten ways in which a large hotel can save water in its rooms.",
    "Translate this sentence into French: The bus arrives at seven.",
    "Plan a week in Vienna for a couple who like music.",
    "A recipe for vegetable soup is in the book, but how do I bake bread, and who wrote the book?",
    "",
    "?!",
)


@pytest.mark.parametrize(("rule", "prompt"), LEAKS)
def test_what_leaks_is_found_by_its_rule(rule: str, prompt: str) -> None:
    assert LeakageFilter(EVALUATION).find(prompt) == rule


@pytest.mark.parametrize("prompt", OTHERS)
def test_what_is_only_alike_is_kept(prompt: str) -> None:
    assert LeakageFilter(EVALUATION).find(prompt) is None


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "Ask me three questions.",
            "1. Who wrote The Tempest? 2. Why is the sky blue? 3. What is 3 times 4?",
        ),
        ("Answer briefly, in one word: what is the capital of France? And of what is it known?", "Paris."),
    ],
)
def test_short_prompts_leak_too_and_in_answers(question: str, answer: str, tmp_path: Path) -> None:
    rows = ({"instruction": EVALUATION[number], "output": "Paris."} for number in (0, 6))
    against = write_rows(tmp_path / "eval.jsonl", rows)
    harmless = {"instruction": "Who wrote it?", "output": "The capital of France is known for its tower."}
    data = write_rows(tmp_path / "data.jsonl", [{"instruction": question, "output": answer}, harmless])
    records, left_out = read(data, against=(against,))
    assert [record.prompt for record in records] == [harmless["instruction"]]
    assert len(left_out) == 1
    skipping, _ = read(data, skip=1, limit=5)
    assert [record.prompt for record in skipping] == [harmless["instruction"]]


def test_a_filter_counts_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"instruction": prompt, "output": "x"} for prompt in (*OTHERS[:3], *dict(LEAKS).values(), OTHERS[0])
    ]
    data = write_rows(tmp_path / "data.jsonl", rows)
    against = write_rows(tmp_path / "eval.jsonl", ({"instruction": prompt} for prompt in EVALUATION))
    assert read_prompts(against) == list(EVALUATION)
    assert status(main, "--data", data, "--against", against, "--out", tmp_path / "out.jsonl") == 0
    assert [record.prompt for record in read_records(tmp_path / "out.jsonl")] == list(OTHERS[:3])
    summary = json.loads(capsys.readouterr().out)
    assert summary["records"] == 3
    rows_left_out = {reason: each["rows"] for reason, each in summary["left_out"].items()}
    assert rows_left_out == {"exact": 1, "near": 1, "inside": 1, "repeated": 1}


# --- lengths

DOCUMENTS = (
    "Only text.",
    'Both. <promise topic="tea" tokens="10"/><async>Tea is old and green.</async> '
    '<promise topic="x" tokens="20"/><async>It is brown and strong and hot.</async><sync/> Enough.',
    'A <promise topic="a" tokens="10"/><async>one two three four five six seven</async> and main goes on '
    'and on and on and on for longer than that.<sync/> B <promise topic="b" tokens="10"/><async></async>',
)


@pytest.mark.parametrize("written", DOCUMENTS)
async def test_the_critical_path_is_the_interpreters(written: str) -> None:
    """The interpreter counts what it decodes; end-of-text is one more."""
    backend = ScriptedBackend(written)
    async with pasta_async.Client(backend, clock=backend.clock) as client:
        answer = await client.generate("?")
    assert answer.document == parse(written)
    path = critical_path(parse(written), lambda text: len(backend.tokenizer.encode(text)))
    assert answer.critical_path - 1 <= path <= answer.critical_path
