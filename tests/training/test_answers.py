"""A model's own plain answers: what is kept, what is drawn, what is not drawn again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_async import InvalidRequestError
from pasta_async.testing import ScriptedBackend
from pasta_async.training import answers
from pasta_async.training.answers import AnswerSettings, draw_answers
from pasta_async.training.data.corpus import read_records, write_records
from tests.helpers.commands_run import failed, status
from tests.helpers.sample_draws import records
from tests.pasta_tiny import LOCAL_TINY

TEXT = "Tea is green. Coffee is brown, and that is all."


def scripted(monkeypatch: pytest.MonkeyPatch, text: str = TEXT) -> ScriptedBackend:
    """The backend that is opened, whatever its name is."""
    backend = ScriptedBackend(text)

    def opened(_: str, **options: Any) -> ScriptedBackend:
        return backend

    monkeypatch.setattr("pasta_async.client.open_backend", opened)
    return backend


def settings(folder: Path, *prompts: str, **more: Any) -> AnswerSettings:
    write_records(folder / "prompts.jsonl", records(*prompts))
    usual = {"backend": "http://x", "prompts": [folder / "prompts.jsonl"], "out": folder / "answers.jsonl"}
    return AnswerSettings.model_validate({**usual, "together": 1, **more})


def kept(folder: Path) -> list[str]:
    return [record.id for record in read_records(folder / "answers.jsonl")]


async def test_answers_are_plain_and_those_of_the_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = scripted(monkeypatch)
    figures = await draw_answers(settings(tmp_path, skip=1, limit=1, temperature=0.7))
    (record,) = read_records(tmp_path / "answers.jsonl")
    assert (record.id, record.written, record.messages[0]["content"]) == ("two", TEXT, "two")
    (request,) = backend.requests
    assert request.sampling.temperature == 0.7
    assert (figures["kept"], figures["resumed"], figures["left_out"]) == (1, 0, {})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Two words.", "trivial"),
        ("One and the same line.\n" * 6, "repeats"),
        ("word " * 600, "long"),
        (TEXT, ""),
    ],
)
async def test_only_what_can_be_learned_from_is_kept(
    text: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, text)
    figures = await draw_answers(settings(tmp_path, "one"))
    assert figures["left_out"] == ({fault: 1} if fault else {})
    assert kept(tmp_path) == ([] if fault else ["one"])


async def test_an_answer_without_the_form_that_was_asked_for_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch)
    drawing = settings(tmp_path)
    in_json = records("two")[0].model_copy(update={"form": r"\s*[\[{].*[\]}]\s*\Z"})
    write_records(tmp_path / "prompts.jsonl", [*records("one"), in_json])
    figures = await draw_answers(drawing)
    assert (figures["kept"], figures["left_out"]) == (1, {"formless": 1})


async def test_other_limits_on_what_is_kept_draw_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = scripted(monkeypatch)
    await draw_answers(settings(tmp_path))
    assert (len(backend.requests), kept(tmp_path)) == (3, ["one", "two", "three"])
    figures = await draw_answers(settings(tmp_path, least=20))
    assert (figures["resumed"], figures["left_out"]) == (3, {"trivial": 3})
    await draw_answers(settings(tmp_path, limit=2))
    assert (len(backend.requests), kept(tmp_path)) == (3, ["one", "two"])
    with pytest.raises(InvalidRequestError, match="temperature"):
        await draw_answers(settings(tmp_path, temperature=1))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = settings(tmp_path, "Describe a garden.")
    common = ("--prompts", drawing.prompts[0], "--out", drawing.out, "--max-tokens", 4)
    assert status(answers.main, *common, "--backend", LOCAL_TINY) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"long": 1}
    assert "ftp:x" in failed(answers.main, *common, "--out", tmp_path / "b.jsonl", "--backend", "ftp:x")
