"""The command: answers, judgements, one result file."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pasta_async.evals.alpaca as about
from pasta_async import Client, Sampling
from pasta_async.cli.command import ending
from pasta_async.evals.alpaca.judging import BOOTSTRAP_SEED, JudgeServer, Options, judge, package_version
from pasta_async.evals.alpaca.outcome import outcome, tables
from pasta_async.evals.alpaca.questions import OFFICIAL, fingerprint, read_difficulty, read_questions
from pasta_async.evals.answers import FORMS, answer_all, of_form
from pasta_async.evals.command import count, positive
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.jobs import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.prompts import Prompt
    from pasta_async.evals.timing import Form

__all__ = ["main"]

_WHY = (
    "AlpacaEval's default, length_controlled_v1, pulls the fit towards how GPT-4 judged two gamed models "
    "against GPT-4's own answers: another judge and another reference than here"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer, judge, write `result.json`, print its tables."""
    options = _options(arguments)
    with ending(resumes=True):
        result = _run(options)
    if result:
        print("\n\n".join(map(markdown_table, tables(result))))


def _run(options: argparse.Namespace) -> dict[str, Any] | None:
    everything = read_questions(options.prompts)
    difficulty = read_difficulty(options.difficulty, everything) if options.difficulty else None
    if options.judge:
        package_version(options.alpaca_python)
    questions = everything[: options.first]
    identity = {
        "backend": options.backend,
        "prompts": {
            "sha256": fingerprint(everything),
            "official": fingerprint(everything) == OFFICIAL,
            "count": len(questions),
        },
        "max_tokens": options.max_tokens,
    }
    where = environment()
    model, answers = asyncio.run(_answers(options, questions, identity))
    if not options.judge:
        return None
    judged, said = _judged(options, questions, answers, difficulty)
    result = {
        "benchmark": "alpaca",
        **identity,
        "model": model,
        **said,
        "difficulty_sha256": sha256(options.difficulty.read_bytes()).hexdigest() if difficulty else None,
        "environment": where,
        **outcome(questions, answers, judged),
    }
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    pairs = zip(questions, judged["preferences"], strict=True)
    rows = [{"instruction": question.text, "preference": found} for question, found in pairs]
    write_rows(options.out / "judged.jsonl", rows)
    return result


async def _answers(
    options: argparse.Namespace, questions: Sequence[Prompt], identity: dict[str, Any]
) -> tuple[str, list[Answer]]:
    async with Client(options.backend) as client:
        model = (await client.connect()).name
        with Journal(options.out / "answers.jsonl", {**identity, "model": model}) as journal:
            return model, await answer_all(
                client,
                [question.text for question in questions],
                journal,
                sampling=Sampling(max_tokens=options.max_tokens),
                together=options.together,
            )


def _judged(
    options: argparse.Namespace,
    questions: Sequence[Prompt],
    answers: Sequence[Answer],
    difficulty: Sequence[float] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What AlpacaEval found, and how it was asked, for the result file."""
    server = JudgeServer(
        options.judge,
        options.judge_model,
        key=os.environ.get(options.judge_key, "none"),
        timeout=options.judge_timeout,
        retries=options.judge_retries,
    )
    how = Options(
        python=options.alpaca_python,
        difficulty=difficulty and difficulty[: len(questions)],
        together=options.together,
        bootstrap=options.bootstrap,
        seed=options.seed,
        allow_missing=options.allow_missing,
    )
    texts: dict[Form, list[str]] = {form: [one.text for one in of_form(answers, form)] for form in FORMS}
    judged = judge(questions, texts, server, how, options.out)
    return judged, {
        "judge": {"url": server.url, "model": server.model, "config": judged["judge_config"]},
        "length_control": how.glm,
        "why_this_length_control": _WHY,
        "seeds": {"alpaca_eval": how.seed, "bootstrap": BOOTSTRAP_SEED},
        "versions": judged["versions"],
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="alpaca", description=about.__doc__, formatter_class=form)
    add = parser.add_argument
    add("--backend", default="local:", help="as for pasta_async.generate")
    add("--prompts", required=True, help="JSON lines with `instruction` and `dataset`")
    add("--difficulty", type=Path, help="CSV with `instruction_difficulty`, in the order of the prompts")
    add("--first", type=count, metavar="N", help="only the first N prompts, to try things")
    add("--out", type=Path, required=True, help="folder; a run that was interrupted goes on from what it has")
    add("--max-tokens", type=count, default=2048, help="of an answer, tags counted")
    add("--together", type=count, default=4, help="answers, and then judgements, at the same time")
    add("--judge", metavar="URL", help="base URL of an OpenAI-compatible server; without it, only answers")
    add("--judge-model", default="gpt-4-1106-preview")
    add("--judge-key", default="OPENAI_API_KEY", metavar="NAME", help="environment variable with its key")
    add("--judge-timeout", type=positive, default=120.0, help="seconds for a judgement")
    add("--judge-retries", type=int, default=8, help="after rate limits, time-outs and the like")
    add("--allow-missing", type=int, default=0, help="pairs that may stay without a judgement")
    add("--bootstrap", type=int, default=200, help="fits of the length-controlled model for its interval")
    add("--seed", type=int, default=0, help="AlpacaEval's, for which answer is shown first")
    add("--alpaca-python", default=sys.executable, help="the Python of an environment with alpaca-eval 0.6")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
