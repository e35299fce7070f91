"""IFEval with its own checkers, in this process; prompts are made up, nothing is fetched."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async.errors import InvalidRequestError
from pasta_async.evals import answers as answering
from pasta_async.evals.answers import Answer, read_answers
from pasta_async.evals.documents import read_prompts
from pasta_async.evals.ifeval import Question, Verdict, accuracy, check, main, read_questions
from pasta_async.evals.records import write_rows
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)
"""The checkers take seconds of CPU to import, on a machine that may be busy."""

TINY = LOCAL_TINY


def follows(answer: str, instruction: str, **asked: Any) -> Verdict:
    return check(Question(prompt="Do it.", instruction_id_list=[instruction], kwargs=[asked]), answer)


@pytest.mark.parametrize(
    ("instruction", "asked", "right", "wrong"),
    [
        ("punctuation:no_comma", {}, "Tea and milk.", "Tea, milk."),
        ("keywords:existence", {"keywords": ["tea"]}, "Some tea.", "Some milk."),
        ("length_constraints:number_words", {"relation": "at least", "num_words": 3}, "A b c d.", "A."),
        ("startend:quotation", {}, '"Tea."', "Tea."),
        ("detectable_format:json_format", {}, '```json\n{"tea": 1}\n```', "{tea}"),
        ("language:response_language", {"language": "de"}, "Der Tee ist gut und warm.", "The tea is good."),
    ],
)
def test_an_instruction_is_followed_or_not(
    instruction: str, asked: dict[str, Any], right: str, wrong: str
) -> None:
    assert follows(right, instruction, **asked) == ([True], [True])
    assert follows(wrong, instruction, **asked) == ([False], [False])


def test_sentences_are_those_of_english() -> None:
    asked = {"relation": "at least", "num_sentences": 3}
    counted = "length_constraints:number_sentences"
    assert follows("Dr. Lee left the U.S. in May. He flew. Good!", counted, **asked).strict == [True]
    assert follows("Dr. Lee left the U.S. in May. He flew.", counted, **asked).strict == [False]
    capitals = {"capital_relation": "at least", "capital_frequency": 2}
    assert follows("TEA is GOOD. Yes.", "change_case:capital_word_frequency", **capitals).strict == [True]


def test_a_first_line_and_stars_do_not_matter_loosely() -> None:
    assert follows("Sure, here it is:\nTea and milk.", "punctuation:no_comma") == ([False], [True])


def test_a_letter_that_the_checker_does_not_take_is_the_same_each_time() -> None:
    asked = {"let_relation": "at least", "letter": "#", "let_frequency": 2}  # it draws one instead
    verdicts = [follows("abcdefghijklm" * 2, "keywords:letter_frequency", **asked) for _ in range(20)]
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


def test_a_run_checks_what_three_answered_and_goes_on_where_it_was_interrupted(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    out, file = tmp_path / "out", tmp_path / "answers.jsonl"
    ask = f"--backend {TINY} --original {TINY} --prompts {questions} --max-tokens 40 --out {file}"
    run(answering.main, ask)
    assert "| parallel | 2 | " in capsys.readouterr().out
    run(main, f"{file} --prompts {questions} --out {out}")
    first = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert {*result["methods"]} == {"original", "baseline", "parallel"}
    strict = "strict, % of instructions"
    assert result["methods"]["baseline"] == result["methods"]["original"], "the same model"
    assert result["differences"]["baseline - original"][strict]["value"] == 0
    assert result["methods"]["parallel"][strict]["value"] < 100, "no zebra"
    rows = [json.loads(line) for line in (out / "checked.jsonl").read_text().splitlines()]
    assert sorted(len(row["strict"]) for row in rows) == [1, 1, 1, 2, 2, 2]
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept[:3]))
    refused(main, f"{file} --prompts {questions} --out {out}")
    run(answering.main, ask)
    capsys.readouterr()
    run(main, f"{file} --prompts {questions} --out {out}")
    assert capsys.readouterr().out == first
    _, answers = read_answers(file)
    texts = {(one.prompt, one.method): one.text for one in answers}
    (verdict,) = (row for row in rows if (row["prompt"], row["method"]) == (0, "parallel"))
    assert verdict["strict"] == ["," not in texts[0, "parallel"]]


def test_answers_to_other_prompts_are_refused(questions: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    write_rows(file, [{"made": "up"}, asdict(Answer(0, "baseline", question="What else?"))])
    refused(main, f"{file} --prompts {questions} --out {tmp_path}/out")


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


def test_other_benchmarks_can_ask_its_prompts(questions: Path) -> None:
    assert [one.text for one in read_prompts(questions)] == [one["prompt"] for one in QUESTIONS]


def accuracies(**verdicts: list[Verdict]) -> dict[str, Any]:
    forms = {
        form: [Answer(place, form, promises=place % 2) for place in range(len(own))]
        for form, own in verdicts.items()
    }
    return accuracy(forms, verdicts)


def test_accuracy_counts_prompts_and_instructions() -> None:
    verdicts = [Verdict([True, False], [True, True]), Verdict([True], [True])] * 10
    found = accuracies(baseline=verdicts)["methods"]["baseline"]
    assert found["strict, % of prompts"]["value"] == 50
    assert found["loose, % of prompts"]["value"] == 100
    assert found["strict, % of instructions"]["value"] == pytest.approx(200 / 3)


def test_a_difference_is_taken_prompt_by_prompt_and_has_a_one_sided_bound() -> None:
    yes, no = Verdict([True], [True]), Verdict([False], [False])
    better, worse = [yes] * 60 + [no] * 40, [yes] * 50 + [no] * 50
    differences = accuracies(parallel=better, baseline=worse)["differences"]
    found = differences["parallel - baseline"]["loose, % of prompts"]
    assert found["value"] == pytest.approx(10)
    assert 0 < found["low"] <= found["bound"] < 10 < found["high"]
    assert differences["where promised"]["loose, % of prompts"]["value"] == pytest.approx(10)


def test_instructions_are_counted_where_promised_too() -> None:
    plain = [Verdict([True] * 3, [True] * 3), Verdict([True], [True])] * 10  # the second of each promises
    parallel = [Verdict([True] * 3, [True] * 3), Verdict([False], [False])] * 10
    found = accuracies(parallel=parallel, baseline=plain)["differences"]
    strict = "strict, % of instructions"
    assert found["parallel - baseline"][strict]["value"] == pytest.approx(-25)
    assert found["where promised"][strict]["value"] == pytest.approx(-100)
