"""The command: answers, judgements, one result file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from hashlib import sha256
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

from pydantic import Field

import pasta_async.evals.alpaca as about
from pasta_async import Client, Sampling
from pasta_async.cli.command import run_command
from pasta_async.evals.alpaca.judging import BOOTSTRAP_SEED, JudgeServer, Options, judge, package_version
from pasta_async.evals.alpaca.outcome import outcome, tables
from pasta_async.evals.alpaca.questions import OFFICIAL, fingerprint, read_difficulty, read_questions
from pasta_async.evals.answers import FORMS, answer_all, of_form
from pasta_async.evals.commands import Positive, Settings
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.jobs import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.documents import Prompt
    from pasta_async.evals.speed import Form

__all__ = ["AlpacaSettings", "main"]

_WHY = (
    "AlpacaEval's default, length_controlled_v1, pulls the fit towards how GPT-4 judged two gamed models "
    "against GPT-4's own answers: another judge and another reference than here"
)


class AlpacaSettings(Settings):
    """What is answered, and who judges."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    prompts: Path = Field(description="JSON lines with `instruction` and `dataset`")
    difficulty: Path | None = Field(
        default=None, description="CSV with `instruction_difficulty`, in the order of the prompts"
    )
    first: int | None = Field(default=None, ge=1, description="only the first so many prompts, to try things")
    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
    max_tokens: int = Field(default=2048, ge=1, description="of an answer, tags counted")
    together: int = Field(default=4, ge=1, description="answers, and then judgements, at the same time")
    judge: str | None = Field(
        default=None, description="base URL of an OpenAI-compatible server; without it, only answers"
    )
    judge_model: str = Field(default="gpt-4-1106-preview", description="the model that judges")
    judge_key: str = Field(default="OPENAI_API_KEY", description="environment variable with its key")
    judge_timeout: Positive = Field(default=120.0, description="seconds for a judgement")
    judge_retries: int = Field(default=8, ge=0, description="after rate limits, time-outs and the like")
    allow_missing: int = Field(default=0, ge=0, description="pairs that may stay without a judgement")
    bootstrap: int = Field(default=200, ge=0, description="fits of the length model, for its interval")
    seed: int = Field(default=0, description="AlpacaEval's, for which answer is shown first")
    alpaca_python: str = Field(
        default=sys.executable, description="the Python of an environment with alpaca-eval 0.6"
    )


def _measure(settings: AlpacaSettings) -> dict[str, Any] | None:
    everything = read_questions(settings.prompts)
    difficulty = read_difficulty(settings.difficulty, everything) if settings.difficulty else None
    if settings.judge:
        package_version(settings.alpaca_python)
    questions = everything[: settings.first]
    identity = {
        "backend": settings.backend,
        "prompts": {
            "sha256": fingerprint(everything),
            "official": fingerprint(everything) == OFFICIAL,
            "count": len(questions),
        },
        "max_tokens": settings.max_tokens,
    }
    where = environment()
    model, answers = asyncio.run(_answers(settings, questions, identity))
    if not settings.judge:
        return None
    judged, said = _judged(settings, questions, answers, difficulty)
    result = {
        "benchmark": "alpaca",
        **identity,
        "model": model,
        **said,
        "difficulty_sha256": sha256(settings.difficulty.read_bytes()).hexdigest()
        if settings.difficulty
        else None,
        "environment": where,
        **outcome(questions, answers, judged),
    }
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    pairs = zip(questions, judged["preferences"], strict=True)
    rows = [{"instruction": question.text, "preference": found} for question, found in pairs]
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


def _judged(
    settings: AlpacaSettings,
    questions: Sequence[Prompt],
    answers: Sequence[Answer],
    difficulty: Sequence[float] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What AlpacaEval found, and how it was asked, for the result file."""
    server = JudgeServer(
        settings.judge or "",
        settings.judge_model,
        key=os.environ.get(settings.judge_key, "none"),
        timeout=settings.judge_timeout,
        retries=settings.judge_retries,
    )
    how = Options(
        python=settings.alpaca_python,
        difficulty=difficulty and difficulty[: len(questions)],
        together=settings.together,
        bootstrap=settings.bootstrap,
        seed=settings.seed,
        allow_missing=settings.allow_missing,
    )
    texts: dict[Form, list[str]] = {form: [one.text for one in of_form(answers, form)] for form in FORMS}
    judged = judge(questions, texts, server, how, settings.out)
    return judged, {
        "judge": {"url": server.url, "model": server.model, "config": judged["judge_config"]},
        "length_control": how.glm,
        "why_this_length_control": _WHY,
        "seeds": {"alpaca_eval": how.seed, "bootstrap": BOOTSTRAP_SEED},
        "versions": judged["versions"],
    }


def _run(settings: AlpacaSettings) -> None:
    if result := _measure(settings):
        print("\n\n".join(map(markdown_table, tables(result))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer, judge, write `result.json`, print its tables."""
    run_command(
        AlpacaSettings,
        _run,
        program="alpaca",
        description=about.__doc__,
        arguments=arguments,
        resumes=True,
    )


if __name__ == "__main__":
    main()
