r"""AlpacaEval: how often a judge prefers the parallel answer to the sequential one.

    python -m pasta_async.evals.alpaca --backend http://127.0.0.1:30000 --prompts alpaca_eval.jsonl \
        --difficulty difficulty.csv --judge https://api.example.com/v1 --judge-model NAME --out results/alpaca

Answers come through `pasta_async.Client`; the judging is AlpacaEval's own package in a process of its own.
Nothing is fetched: prompts and difficulties are files that you name, the judge is a server that you name.
"""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import Client, Sampling
from pasta_async.cli.command import run_command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.alpaca.judging import BOOTSTRAP_SEED, JudgeSettings, Pair, judge, length_model
from pasta_async.evals.alpaca.outcome import outcome, tables
from pasta_async.evals.alpaca.questions import OFFICIAL, fingerprint, read_difficulty, read_questions
from pasta_async.evals.answers import answer_all, of_form
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.jobs import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.documents import Prompt

__all__ = ["AlpacaSettings", "main"]

_WHY = (
    "AlpacaEval's default, length_controlled_v1, pulls the fit towards how GPT-4 judged two gamed models "
    "against GPT-4's own answers: another judge and another reference than here"
)


class AlpacaSettings(JudgeSettings):
    """What is answered, and who judges."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    prompts: Path = Field(description="JSON lines with `instruction` and `dataset`")
    difficulty: Path | None = Field(
        default=None, description="CSV with `instruction_difficulty`, in the order of the prompts"
    )
    first: int | None = Field(default=None, ge=1, description="only the first so many prompts, to try things")
    max_tokens: int = Field(default=2048, ge=1, description="of an answer, tags counted")


def _measure(settings: AlpacaSettings) -> dict[str, Any] | None:
    if settings.judge and find_spec("alpaca_eval") is None:
        raise InvalidRequestError("judging needs alpaca-eval: pip install 'pasta_async[evals]'")
    everything = read_questions(settings.prompts)
    difficulty = read_difficulty(settings.difficulty, everything) if settings.difficulty else None
    questions = everything[: settings.first]
    known = fingerprint(everything)
    identity = {
        "backend": settings.backend,
        "prompts": {"sha256": known, "official": known == OFFICIAL, "count": len(questions)},
        "max_tokens": settings.max_tokens,
    }
    where = environment()
    model, answers = asyncio.run(_answers(settings, questions, identity))
    if not settings.judge:
        return None
    texts = [[one.text for one in of_form(answers, form)] for form in ("parallel", "baseline")]
    pairs = [Pair(one.text, *both) for one, *both in zip(questions, *texts, strict=True)]
    judged = judge(pairs, settings, difficulty and difficulty[: settings.first])
    file = settings.difficulty
    result = {
        "benchmark": "alpaca",
        **identity,
        "model": model,
        "judge": {"url": settings.judge, "model": settings.judge_model, "config": judged["judge_config"]},
        "length_control": length_model(difficulty),
        "why_this_length_control": _WHY,
        "seeds": {"alpaca_eval": settings.seed, "bootstrap": BOOTSTRAP_SEED},
        "versions": judged["versions"],
        "difficulty_sha256": sha256(file.read_bytes()).hexdigest() if file else None,
        "environment": where,
        **outcome(questions, answers, judged),
    }
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    preferences = zip(questions, judged["preferences"], strict=True)
    rows = [{"instruction": one.text, "preference": preference} for one, preference in preferences]
    write_rows(settings.out / "judged.jsonl", rows)
    return result


async def _answers(
    settings: AlpacaSettings, questions: Sequence[Prompt], identity: dict[str, Any]
) -> tuple[str, list[Answer]]:
    async with Client(settings.backend) as client:
        model = (await client.connect()).name
        with Journal(settings.out / "answers.jsonl", {**identity, "model": model}) as journal:
            return model, await answer_all(
                client,
                [question.text for question in questions],
                journal,
                sampling=Sampling(max_tokens=settings.max_tokens),
                together=settings.together,
            )


def _run(settings: AlpacaSettings) -> None:
    if result := _measure(settings):
        print("\n\n".join(map(markdown_table, tables(result))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer, judge, write `result.json`, print its tables."""
    run_command(
        AlpacaSettings,
        _run,
        program="alpaca",
        description=__doc__,
        arguments=arguments,
        resumes=True,
    )


if __name__ == "__main__":
    main()
