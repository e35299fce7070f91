from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async.errors import InvalidRequestError
from pasta_async.evals import frontier, load, random_model, speed
from pasta_async.evals.methods import __main__ as methods
from pasta_async.jobs import Journal, write_json
from tests.pasta_tiny import LOCAL_TINY, PASTA_TINY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Main = Callable[[Sequence[str]], None]


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (load.main, f"--backend {LOCAL_TINY} --documents none --at-once 0"),
        (load.main, f"--backend {LOCAL_TINY} --documents none --rates -1"),
        (load.main, f"--backend {LOCAL_TINY} --documents none --rates inf"),
        (methods.main, f"--backend {LOCAL_TINY} --documents none --sample 0"),
        (speed.main, "--passes many"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_anything_starts(
    main: Main, arguments: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert "Invalid value" in capsys.readouterr().err


@pytest.mark.parametrize("main", [load.main, methods.main, random_model.main])
def test_every_setting_is_an_option(main: Main, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert not ended.value.code
    assert "--documents" in capsys.readouterr().out


def test_what_does_not_fit_ends_a_command_with_one_line(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("no JSON\n")
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"id": "1", "messages": [{"role": "user", "content": "?"}], "written": "Yes."}\n')
    nowhere = "http://127.0.0.1:9"
    for arguments in (
        f"--backend {LOCAL_TINY} --documents {tmp_path / 'missing.jsonl'}",
        f"--backend {LOCAL_TINY} --documents {documents} --out {rows}",
        f"--backend {nowhere} --documents {documents}",
        f"--backend local:{tmp_path / 'nowhere'} --documents {documents}",
        f"--backend simulated:{tmp_path / 'nowhere'} --documents {documents}",
    ):
        with pytest.raises(SystemExit) as ended:
            load.main(arguments.split())
        assert isinstance(ended.value.code, str) and ended.value.code.count("\n") == 0


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (frontier.main, "--n 1 --families chain --max-tokens 4"),
        (speed.main, "--n 1 --families chain --max-tokens 4 --passes 1"),
        (load.main, "--documents {0}/documents.jsonl --at-once 1 --answers 1 --rounds 1"),
        (methods.main, "--documents {0}/documents.jsonl --methods pasta --passes 1"),
    ],
)
def test_figures_of_other_weights_at_the_same_path_are_not_gone_on_with(
    main: Main, arguments: str, tmp_path: Path
):
    model = tmp_path / "model"
    shutil.copytree(PASTA_TINY, model)
    (tmp_path / "documents.jsonl").write_text(
        '{"id": "1", "messages": [{"role": "user", "content": "?"}], "written": "Yes."}\n'
    )
    given = f"--backend local:{model} {arguments.format(tmp_path)} --out {tmp_path}/out"
    run(main, given)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert "(weights: " in refused(main, given)


def test_a_journal_is_not_taken_for_one_of_something_else(tmp_path: Path):
    for content in ("no JSON\n", "[1]\n", "{}\nno JSON\n"):
        (tmp_path / "rows.jsonl").write_text(content)
        with pytest.raises(InvalidRequestError):
            Journal(tmp_path / "rows.jsonl", {})


@pytest.mark.parametrize("content", ['{"instruction": "Hi"}', "Hi\nthere", '{"instruction": "Hi"}\n{"ins'])
def test_a_file_of_something_else_stays_as_it_was(content: str, tmp_path: Path):
    path = tmp_path / "prompts.json"
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


def test_one_command_at_a_time_writes_a_journal(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    with Journal(path, {"of": "x"}) as journal:
        with pytest.raises(InvalidRequestError):
            Journal(path, {"of": "x"})
        journal.append({"a": 1})
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == [{"a": 1}]


def test_a_journal_gives_rows_by_their_places_without_holding_them(tmp_path: Path):
    rows = [{"text": "漢字 \ud800"}, {"text": "two"}, {"text": "three"}]
    path = tmp_path / "rows.jsonl"
    with Journal(path, {"of": "x"}, held=False) as journal:
        places = [journal.append(row) for row in rows[:2]]
        assert [journal.read(place) for place in reversed(places)] == rows[1::-1]
    with path.open("ab") as file:
        file.write(b'{"text": "cu')
    with Journal(path, {"of": "x"}, held=False) as journal:
        assert not journal.rows
        journal.append(rows[2])
        assert [row for _, row in journal.stored()] == rows
    with Journal(path, {"of": "x"}) as journal:
        assert journal.rows == rows


def test_ctrl_c_leaves_what_was_measured_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "rows.jsonl"
    command = [*"--n 1 --passes 1 --families chain --families fair --out".split(), str(out)]
    append = Journal.append

    def press_ctrl_c_behind_an_answer(journal: Journal, row: Mapping[str, Any]) -> None:
        append(journal, row)
        if "environment" not in row:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(Journal, "append", press_ctrl_c_behind_an_answer)
        speed.main(command)
    assert ended.value.code == 130
    measured = out.read_text()
    assert len(measured.splitlines()) == 3

    with pytest.raises(SystemExit) as ended:
        speed.main(command)
    assert not ended.value.code
    assert out.read_text().startswith(measured)
    assert "| all | 2 |" in capsys.readouterr().out


def test_json_is_written_as_it_is_even_half_a_character_of_a_file_name(tmp_path: Path):
    content = {"out": os.fsdecode(b"runs/\xff"), "text": "pâté"}
    write_json(tmp_path / "new" / "result.json", content)
    written = (tmp_path / "new" / "result.json").read_bytes().decode()
    assert "pâté" in written
    assert json.loads(written) == content
