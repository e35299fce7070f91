"""IFEval with its own checkers, in this process; prompts are made up, nothing is fetched."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pasta_async.errors import InvalidRequestError
from pasta_async.evals import quality
from pasta_async.evals.answers import Answer
from pasta_async.evals.ifeval import Question, check, read_questions
from tests.helpers.commands_run import failed, run, write_rows

pytestmark = pytest.mark.timeout(300)
"""The checkers take seconds of CPU to import, on a machine that may be busy."""


def follows(answer: str, instruction: str, **asked: Any) -> tuple[float | None, ...]:
    """The percentages of an answer: strict, loose."""
    question = Question(prompt="Do it.", instruction_id_list=[instruction], kwargs=[asked])
    return tuple(check(question, answer).values())


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
    assert follows(right, instruction, **asked) == (100, 100)
    assert follows(wrong, instruction, **asked) == (0, 0)


def test_sentences_are_those_of_english() -> None:
    wanted = {"relation": "at least", "num_sentences": 3}
    counted = "length_constraints:number_sentences"
    assert follows("Dr. Lee left the U.S. in May. He flew. Good!", counted, **wanted) == (100, 100)
    assert follows("Dr. Lee left the U.S. in May. He flew.", counted, **wanted) == (0, 0)
    capitals = {"capital_relation": "at least", "capital_frequency": 2}
    assert follows("TEA is GOOD. Yes.", "change_case:capital_word_frequency", **capitals) == (100, 100)


def test_a_first_line_and_stars_do_not_matter_loosely() -> None:
    assert follows("Sure, here it is:\nTea and milk.", "punctuation:no_comma") == (0, 100)


def test_a_letter_that_the_checker_does_not_take_is_the_same_each_time() -> None:
    wanted = {"let_relation": "at least", "letter": "#", "let_frequency": 2}  # it draws one instead
    verdicts = [follows("abcdefghijklm" * 2, "keywords:letter_frequency", **wanted) for _ in range(20)]
    assert len({*verdicts}) == 1


def test_an_empty_answer_follows_nothing() -> None:
    question = Question(
        prompt="Do it.",
        instruction_id_list=["punctuation:no_comma", "change_case:english_lowercase"],
        kwargs=[{}, {}],
    )
    assert {*check(question, " \n").values()} == {0}


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


def test_answers_are_checked(questions: Path, tmp_path: Path) -> None:
    texts = {
        "baseline": ("Ada, who counts.", "bert."),
        "parallel": ("Ada counts.", "bert is a man who has a zebra in his garden."),
    }
    rows = [
        asdict(Answer(number, form, text=text, question=QUESTIONS[number]["prompt"]))
        for form, answers in texts.items()
        for number, text in enumerate(answers)
    ]
    file = write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *rows])
    run(quality.main, f"--answers {file} --ifeval {questions} --out {tmp_path}/out")
    figures = json.loads((tmp_path / "out" / "result.json").read_text())["figures"]
    assert figures["baseline"]["IFEval, strict, %"]["value"] == 0
    assert figures["parallel"]["IFEval, strict, %"]["value"] == 100
    assert figures["parallel - baseline"]["IFEval, loose, %"]["value"] == 100


def test_answers_to_other_prompts_are_refused(questions: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    write_rows(file, [{"made": "up"}, asdict(Answer(0, "baseline", question="What else?"))])
    assert "What else?" in failed(quality.main, f"--answers {file} --ifeval {questions} --out {tmp_path}/out")


def test_prompts_without_a_checker_are_refused(tmp_path: Path) -> None:
    row: dict[str, Any] = {"prompt": "Do it.", "instruction_id_list": ["magic:none"], "kwargs": [{}]}
    for wrong in (row, {"prompt": "Do it."}):
        write_rows(tmp_path / "wrong.jsonl", [wrong])
        with pytest.raises(InvalidRequestError):
            read_questions(tmp_path / "wrong.jsonl")
    (tmp_path / "wrong.jsonl").write_text("")
    with pytest.raises(InvalidRequestError):
        read_questions(tmp_path / "wrong.jsonl")
