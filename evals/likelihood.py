r"""How likely a plain model finds answers, in bits a token: parallel ones beside the plain.

    python -m pasta_async.evals.likelihood --answers results/alpaca/answers.jsonl \
        --prompts alpaca_eval.jsonl --model FOLDER --out results/likelihood

The answers are a benchmark's, the prompts those that it asked. Measured is the visible text behind the plain
prompt, so a chunk stands behind the siblings that its thread has not seen.
"""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import read_answers
from pasta_async.evals.documents import digest, read_prompts
from pasta_async.evals.records import environment, markdown_table
from pasta_async.jobs import Journal, progress
from pasta_async.training.identity import model_digest
from pasta_async.training.statistics import estimate, format_estimate, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer

__all__ = ["LikelihoodSettings", "figures", "main", "measure", "table"]

_AT_ONCE = 32
"""Answers that are computed together and then written to the journal."""


class LikelihoodSettings(CommandSettings):
    """What is measured, and by which model."""

    answers: Path = Field(description="file of answers")
    prompts: Path = Field(description="the prompts that they answer: a line each, or .jsonl")
    model: Path = Field(description="folder of the model, which is asked in its plain form")
    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
    row_tokens: int = Field(default=1024, ge=16, description="tokens of a forward pass")


def measure(settings: LikelihoodSettings) -> dict[str, Any]:
    """Measure the answers of a file; the result, as it is written to `result.json`.

    Raises:
        PastaError: A file or the model cannot be used, or the prompts are not those of the answers.
    """
    identity, answers = read_answers(settings.answers)
    answers = [one for one in answers if one.number == 0]
    prompts = _prompts(settings.prompts, identity, answers)
    asked = {digest((prompts[one.prompt], one.text)): (prompts[one.prompt], one.text) for one in answers}
    model = {"model": model_digest(settings.model)}
    with Journal(settings.out / "bits.jsonl", {"benchmark": "likelihood", **model}) as journal:
        _compute(settings, asked, journal)
        bits = {row["key"]: row["bits"] for row in journal.rows}
    result = {
        "benchmark": "likelihood",
        **model,
        "answers": identity,
        "methods": figures(answers, [bits[digest((prompts[one.prompt], one.text))] for one in answers]),
        "environment": environment(),
    }
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _prompts(path: Path, identity: dict[str, Any], answers: Sequence[Answer]) -> list[str]:
    """The prompts that the answers answer; their file tells which by a hash.

    Raises:
        InvalidRequestError: They are others.
    """
    prompts = [prompt.text for prompt in read_prompts(path)]
    count = 1 + max(one.prompt for one in answers)
    known = identity.get("prompts")
    hashed: Any = cast("dict[str, str]", known)["sha256"][:24] if isinstance(known, dict) else known
    if count > len(prompts) or hashed not in (None, digest(prompts), digest(prompts[:count])):
        raise InvalidRequestError(f"{path} has other prompts than those that were answered: name their file")
    return prompts


def _compute(settings: LikelihoodSettings, asked: dict[str, tuple[str, str]], journal: Journal) -> None:
    """Compute the bits a token of what the journal does not have, and append them."""
    from pasta_async.training.likelihood import LanguageModel, bits_per_token

    known = {row["key"] for row in journal.rows}
    due = [key for key in asked if key not in known]
    if not due:
        return
    model = LanguageModel(settings.model, settings.row_tokens)
    with progress(len(asked), "answers", done=len(asked) - len(due)) as advance:
        for start in range(0, len(due), _AT_ONCE):
            keys = due[start : start + _AT_ONCE]
            answers = [([{"role": "user", "content": asked[key][0]}], asked[key][1]) for key in keys]
            for key, bits in zip(keys, bits_per_token(model, answers), strict=True):
                journal.append({"key": key, "bits": bits})
            advance(len(keys))


def figures(answers: Sequence[Answer], bits: Sequence[float | None]) -> dict[str, Any]:
    """The figures of each method, with 95% intervals over prompts.

    Args:
        answers: Of one pass, of some methods.
        bits: A token of each; None where it has none.

    Returns:
        By method: the bits a token, and for what is no baseline how many more they are than the
        baseline's (`difference`), of all answers and of those `with_promises`, and the share in percent
        that is `dearer`. Answers without bits are `left_out`.
    """
    found = {(one.method, one.prompt): value for one, value in zip(answers, bits, strict=True)}
    result: dict[str, Any] = {}
    for method in dict.fromkeys(one.method for one in answers):
        own = [one for one in answers if one.method == method]
        known = [value for one in own if (value := found[method, one.prompt]) is not None]
        result[method] = {
            "prompts": len(known),
            "left_out": len(own) - len(known),
            "bits": estimate(known, fmean) if known else None,
        }
        more = [
            (one.promises, value - plain)
            for one in own
            if (value := found[method, one.prompt]) is not None
            and (plain := found.get(("baseline", one.prompt))) is not None
        ]
        if method != "baseline" and more:
            promised = [value for promises, value in more if promises]
            result[method] |= {
                "difference": estimate([value for _, value in more], fmean),
                "with_promises": estimate(promised, fmean) if promised else None,
                "dearer": share([value > 0 for _, value in more]),
            }
    return result


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows, one for each method."""
    return [
        {
            "": method,
            "prompts": own["prompts"],
            "left out": own["left_out"],
            "bits a token": format_estimate(own["bits"], ".3f"),
            "to the baseline": format_estimate(own.get("difference"), "+.3f"),
            "where promised": format_estimate(own.get("with_promises"), "+.3f"),
            "dearer %": format_estimate(own.get("dearer")),
        }
        for method, own in result["methods"].items()
    ]


main: Command = command(
    LikelihoodSettings,
    lambda settings: markdown_table(table(measure(settings))),
    "likelihood",
    __doc__,
    resumes=True,
)

if __name__ == "__main__":
    main()
