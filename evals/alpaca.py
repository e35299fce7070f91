r"""AlpacaEval: how often a judge prefers the parallel answer to the sequential one.

    python -m pasta_async.evals.answers --backend http://127.0.0.1:30000 --prompts alpaca_eval.jsonl \
        --max-tokens 2048 --out results/alpaca/answers.jsonl
    python -m pasta_async.evals.alpaca results/alpaca/answers.jsonl --prompts alpaca_eval.jsonl \
        --difficulty difficulty.csv --judge https://api.example.com/v1 --judge-model NAME --out results/alpaca

AlpacaEval's own package makes of the judge's replies what it does. Nothing is fetched: prompts and
difficulties are files that you name, the judge is a server that you name.
"""

from __future__ import annotations

import csv
from collections import Counter
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from numpy import quantile
from pydantic import Field, model_validator

from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import FORMS, theoretical
from pasta_async.evals.documents import read_prompts
from pasta_async.evals.instruments import read_forms
from pasta_async.evals.judging import BOOTSTRAP_SEED, JudgementSettings, Pair, judge, length_model
from pasta_async.evals.records import markdown_table, write_result, write_rows
from pasta_async.training.statistics import estimate, format_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.training.statistics import Estimate

__all__ = ["OFFICIAL", "AlpacaSettings", "main", "read_difficulty", "tables"]

OFFICIAL = "bfe8c45991f635de0b1f94abeeb1335ef665d58eddd87ddf6fa71b7b0c2ce7a5"
"""The SHA-256 of AlpacaEval's 805 prompts in the official order (`_fingerprint`)."""


class AlpacaSettings(JudgementSettings):
    """What is judged, and by whom."""

    answers: Path = Field(description="file of answers in both forms, by pasta_async.evals.answers")
    prompts: Path | None = Field(
        default=None,
        description="all prompts, in the order of the difficulties: JSON lines with `instruction`",
    )
    difficulty: Path | None = Field(
        default=None, description="CSV with `instruction_difficulty`, in the order of the prompts"
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.difficulty and not self.prompts:
            raise ValueError("--difficulty goes by position: name the file of all prompts with --prompts")
        return self


def _fingerprint(questions: Sequence[str]) -> str:
    return sha256("\0".join(questions).encode()).hexdigest()


def read_difficulty(path: Path, questions: Sequence[str]) -> list[float]:
    """The difficulty of each prompt, from a CSV file with `instruction_difficulty` in the prompts' order.

    AlpacaEval joins difficulties to prompts by position, and does not notice another order. Here the rows
    must be known to be those of the prompts: by a column `instruction` that says so, or, without one, by the
    prompts being the official 805 in the official order.

    Raises:
        InvalidRequestError: That is not known, or not so; or a value is no number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        values = [float(row["instruction_difficulty"]) for row in rows]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InvalidRequestError(
            f"{path}: no number `instruction_difficulty` in a row: {error!r}"
        ) from error
    if len(rows) != len(questions):
        raise InvalidRequestError(f"{path} has {len(rows)} rows for {len(questions)} prompts")
    for number, (row, question) in enumerate(zip(rows, questions, strict=True)):
        expected = {"index": str(number), "instruction": question}
        if differ := [name for name, value in expected.items() if row.get(name, value) != value]:
            raise InvalidRequestError(f"{path}: row {number + 1} is of another prompt, by its {differ[0]}")
    if "instruction" not in rows[0] and _fingerprint(questions) != OFFICIAL:
        raise InvalidRequestError(
            f"{path} goes by position, and the prompts are not AlpacaEval's 805 in the official order: give "
            "it a column `instruction`, or leave it out to have lengths controlled without difficulties"
        )
    return values


def _measure(settings: AlpacaSettings) -> str:
    if find_spec("alpaca_eval") is None:
        raise InvalidRequestError("judging needs alpaca-eval: pip install 'pasta_async[evals]'")
    identity, forms = read_forms(settings.answers, FORMS)
    plain, parallel = forms["baseline"], forms["parallel"]
    text, count = Counter(one.question for one in plain).most_common(1)[0]
    if count > 1:  # AlpacaEval tells prompts apart by their text
        raise InvalidRequestError(f"{settings.answers}: a prompt stands there {count} times: {text!r}")
    difficulty = _difficulties(settings, plain)
    pairs = [Pair(a.question, a.text, b.text) for a, b in zip(parallel, plain, strict=True)]
    judged = judge(pairs, settings, difficulty)
    result = {
        "benchmark": "alpaca",
        "answers": identity,
        "official": _fingerprint([one.question for one in plain]) == OFFICIAL,
        "judge": {"url": settings.judge, "model": settings.judge_model, "config": judged["judge_config"]},
        "length_control": length_model(difficulty),
        "seeds": {"alpaca_eval": settings.seed, "bootstrap": BOOTSTRAP_SEED},
        "versions": judged["versions"],
        "difficulty_sha256": settings.difficulty and sha256(settings.difficulty.read_bytes()).hexdigest(),
        **_outcome(parallel, plain, judged),
    }
    write_result(settings.out, result)
    preferences = zip(plain, judged["preferences"], strict=True)
    rows = [{"instruction": one.question, "preference": preference} for one, preference in preferences]
    write_rows(settings.out / "judged.jsonl", rows)
    return "\n\n".join(map(markdown_table, tables(result)))


def _difficulties(settings: AlpacaSettings, answers: Sequence[Answer]) -> list[float] | None:
    """The difficulty of each prompt that was answered."""
    if not (settings.difficulty and settings.prompts):
        return None
    questions = [one.text for one in read_prompts(settings.prompts)]
    known = dict(zip(questions, read_difficulty(settings.difficulty, questions), strict=True))
    if unknown := [one.question for one in answers if one.question not in known]:
        raise InvalidRequestError(f"{settings.prompts} does not have the prompt {unknown[0]!r:.80}")
    return [known[one.question] for one in answers]


def _outcome(parallel: Sequence[Answer], plain: Sequence[Answer], judged: dict[str, Any]) -> dict[str, Any]:
    """Win rates in percent with 95% intervals, lengths in characters, and the theoretical speed-up."""
    preferences: list[float | None] = judged["preferences"]
    sources: dict[str, list[float | None]] = {}
    for answer, preference in zip(plain, preferences, strict=True):
        sources.setdefault(answer.family, []).append(preference)
    forms = {"baseline": plain, "parallel": parallel}
    return {
        "prompts": len(plain),
        "win_rate": _win_rate(preferences),
        "length_controlled_win_rate": _length_controlled(judged),
        "alpaca_eval": {**judged["winrate"], **judged.get("length_controlled", {})},
        "missing": judged["missing"],
        "by_dataset": [
            {"dataset": name, "prompts": len(found), "win_rate": _win_rate(found)}
            for name, found in sources.items()
        ],
        "mean_length": {form: fmean(len(one.text) for one in found) for form, found in forms.items()},
        "empty": {form: sum(not one.text.strip() for one in found) for form, found in forms.items()},
        "same_text": sum(a.text == b.text for a, b in zip(parallel, plain, strict=True)),
        "theoretical_speedup": theoretical(parallel, plain),
        "cut_by_length": {form: fmean(one.ended_by_length for one in own) for form, own in forms.items()},
        "malformed": fmean(not one.well_formed for one in parallel),
        "with_promises": fmean(one.promises > 0 for one in parallel),
    }


def _win_rate(preferences: Sequence[float | None]) -> Estimate | None:
    known = [100 * value for value in preferences if value is not None]
    return estimate(known, "arithmetic", seed=BOOTSTRAP_SEED) if known else None


def _length_controlled(judged: dict[str, Any]) -> dict[str, Any]:
    if "length_controlled" not in judged:
        return {"reason": judged["no_length_control"]}
    value = judged["length_controlled"]["length_controlled_winrate"]
    draws: list[float] = judged["length_controlled_draws"] or [value]
    low, high = quantile(draws, [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high), "draws": len(draws)}


def tables(result: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The result as rows of two tables: all prompts, and by source."""
    controlled = result["length_controlled_win_rate"]
    whole = {
        "prompts": result["prompts"],
        "win rate %": format_estimate(result["win_rate"]),
        "length-controlled %": controlled.get("reason") or format_estimate(controlled),
        "characters, parallel": result["mean_length"]["parallel"],
        "characters, baseline": result["mean_length"]["baseline"],
        "theoretical speed-up": format_estimate(result["theoretical_speedup"], ".2f"),
        "malformed": f"{result['malformed']:.1%}",
        "judge": result["judge"]["model"],
    }
    sources = [
        {"source": row["dataset"], "prompts": row["prompts"], "win rate %": format_estimate(row["win_rate"])}
        for row in result["by_dataset"]
    ]
    return [[whole], sources]


main: Command = command(AlpacaSettings, _measure, "alpaca", __doc__, positional=("answers",), resumes=True)

if __name__ == "__main__":
    main()
