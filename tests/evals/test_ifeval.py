"""IFEval with its own checkers, in this process; prompts are made up, nothing is fetched."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async.errors import InvalidRequestError
from pasta_async.evals import quality
from pasta_async.evals.answers import Answer, read_answers
from pasta_async.evals.ifeval import Question, Verdict, check, read_questions
from pasta_async.evals.report import write_rows
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)
"""The checkers take seconds of CPU to import, on a machine that may be busy."""


def follows(answer: str, instruction: str, **asked: Any) -> Verdict:
    return check(Question(prompt="Do it.", instruction_id_list=[instruction], kwargs=[asked]), answer)


@pytest.mark.parametrize(
    ("instruction", "asked", "right", "wrong"),
    [
        ("punctuation:no_comma", {}, "Tea and milk.", "Tea, milk."),
        ("length_constraints:number_words", {"relation": "at least", "num_words": 3}, "A b c d.", "A."),
        ("language:response_language", {"language": "de"}, "Der Tee ist gut und warm.", "The tea is good."),
    ],
)
def test_an_instruction_is_followed_or_not(
    instruction: str, asked: dict[str, Any], right: str, wrong: str
) -> None:
    assert follows(right, instruction, **asked) == ([True], [True])
    assert follows(wrong, instruction, **asked) == ([False], [False])


def test_sentences_are_those_of_english() -> None:
    wanted = {"relation": "at least", "num_sentences": 3}
    counted = "length_constraints:number_sentences"
    assert follows("Dr. Lee left the U.S. in May. He flew. Good!", counted, **wanted).strict == [True]
    assert follows("Dr. Lee left the U.S. in May. He flew.", counted, **wanted).strict == [False]
    capitals = {"capital_relation": "at least", "capital_frequency": 2}
    assert follows("TEA is GOOD. Yes.", "change_case:capital_word_frequency", **capitals).strict == [True]


def test_a_first_line_and_stars_do_not_matter_loosely() -> None:
    assert follows("Sure, here it is:\nTea and milk.", "punctuation:no_comma") == ([False], [True])


def test_a_letter_that_the_checker_does_not_take_is_the_same_each_time() -> None:
    wanted = {"let_relation": "at least", "letter": "#", "let_frequency": 2}  # it draws one instead
    verdicts = [follows("abcdefghijklm" * 2, "keywords:letter_frequency", **wanted) for _ in range(20)]
    assert len({verdict.strict[0] for verdict in verdicts}) == 1


def test_an_empty_answer_follows_nothing() -> None:
    question = Question(
        prompt="Do it.",
        instruction_id_list=["punctuation:no_comma", "change_case:english_lowercase"],
        kwargs=[{}, {}],
    )
    assert check(question, " \n") == ([False, False], [False, False])


QUESTIONS: list[dict[str, Any]] = [
    {
        "key": 1,
        "prompt": "Describe Ada without a comma.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    {
        "prompt": "Describe Bert in lower case with the word zebra.",
        "instruction_id_list": ["change_case:english_lowercase", "keywords:existence"],
        "kwargs": [{}, {"keywords": ["zebra"], "num_words": None}],
    },
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    write_rows(tmp_path / "questions.jsonl", QUESTIONS)
    return tmp_path / "questions.jsonl"


def test_a_run_checks_what_was_answered_and_goes_on_where_it_was_interrupted(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    command = f"--backend {LOCAL_TINY} --prompts {questions} --max-tokens 40 --ifeval {questions}"
    run(quality.main, f"{command} --out {tmp_path}/out")
    first = capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["methods"]["parallel"]["IFEval, strict, %"]["value"] < 100, "no zebra"
    rows = [json.loads(line) for line in (tmp_path / "out" / "checked.jsonl").read_text().splitlines()]
    assert sorted(len(row["strict"]) for row in rows) == [1, 1, 2, 2]
    file = tmp_path / "out" / "answers.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]))
    run(quality.main, f"{command} --out {tmp_path}/out")
    assert capsys.readouterr().out == first
    texts = {(answer.prompt, answer.method): answer.text for answer in read_answers(file)[1]}
    verdicts = {(row["prompt"], row["method"]): row["strict"] for row in rows}
    assert verdicts[QUESTIONS[0]["prompt"], "parallel"] == ["," not in texts[0, "parallel"]]


def test_answers_to_other_prompts_are_refused(questions: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    write_rows(file, [{"made": "up"}, asdict(Answer(0, "baseline", question="What else?"))])
    assert "What else?" in refused(
        quality.main, f"--answers {file} --ifeval {questions} --out {tmp_path}/out"
    )


def test_prompts_without_a_checker_are_refused(tmp_path: Path) -> None:
    row: dict[str, Any] = {"prompt": "Do it.", "instruction_id_list": ["magic:none"], "kwargs": [{}]}
    rows: list[dict[str, Any]] = [row, row | {"kwargs": []}, {"prompt": "Do it."}]
    for wrong in rows:
        write_rows(tmp_path / "wrong.jsonl", [wrong])
        with pytest.raises(InvalidRequestError):
            read_questions(tmp_path / "wrong.jsonl")
    (tmp_path / "wrong.jsonl").write_text("")
    with pytest.raises(InvalidRequestError):
        read_questions(tmp_path / "wrong.jsonl")


def test_figures_of_a_verdict() -> None:
    figures = Verdict([True, False], [True, True]).figures
    assert [*figures.values()] == [0, 50, 100, 100]
