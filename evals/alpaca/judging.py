"""Have pairs of answers judged by AlpacaEval's own package, in a process of its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.jobs import progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.evals.documents import Prompt
    from pasta_async.evals.speed import Form

__all__ = ["BOOTSTRAP_SEED", "JudgeFailed", "JudgeServer", "Options", "judge", "package_version"]

_WORKER = Path(__file__).with_name("judge_worker.py")
BOOTSTRAP_SEED = 0
_ASK_VERSION = "from importlib.metadata import version; print(version('alpaca_eval'))"


class JudgeFailed(PastaError):
    """Not every pair was judged. What was judged is kept, and the next run goes on from there."""


@dataclass(frozen=True, slots=True)
class JudgeServer:
    """An OpenAI-compatible server that returns `top_logprobs`, and the model that judges."""

    url: str
    """Its base URL, which usually ends in `/v1`."""
    model: str
    key: str = "none"
    """Goes to the process that asks, through its environment; it is never written down."""
    timeout: float = 120.0
    """Seconds for one judgement."""
    retries: int = 8
    """After a rate limit (`Retry-After` is followed), a time-out, a lost connection or a 5xx."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the judging is done."""

    python: str
    """The interpreter of an environment that has alpaca-eval 0.6."""
    difficulty: Sequence[float] | None = None
    """Of each prompt, in order. None: lengths are controlled without difficulties."""
    together: int = 4
    """Judgements at the same time."""
    bootstrap: int = 200
    """Fits of the length-controlled model on prompts drawn with replacement."""
    seed: int = 0
    """AlpacaEval's: which answer of a pair stands first."""
    allow_missing: int = 0
    """Pairs that may stay without a judgement."""

    @property
    def glm(self) -> str:
        """The name of AlpacaEval's length-controlled model."""
        return "length_controlled_minimal" if self.difficulty is None else "length_controlled_noreg"


def package_version(python: str) -> str:
    """The version of alpaca-eval under an interpreter.

    Raises:
        InvalidRequestError: It has none, or another than 0.6; the message says what to install.
    """
    help_ = "install it there (pip install 'pasta_async[evals]'), or name another with --alpaca-python"
    try:
        command = [python, "-c", _ASK_VERSION]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise InvalidRequestError(f"{python} has no alpaca-eval: {help_}") from error
    if not found.startswith("0.6."):
        raise InvalidRequestError(f"{python} has alpaca-eval {found}, and 0.6 is needed: {help_}")
    return found


def judge(
    questions: Sequence[Prompt],
    answers: Mapping[Form, Sequence[str]],
    server: JudgeServer,
    options: Options,
    folder: Path,
) -> dict[str, Any]:
    """Judge the parallel answers against the baseline's; judgements in `folder` are not asked for again.

    Args:
        questions: The prompts.
        answers: `baseline` and `parallel`: a text for each prompt.
        server: Who judges.
        options: How.
        folder: Gets the judgements, and `judge.log`.

    Returns:
        What `judge_worker.run` returns: the preference for parallel (0 to 1) for each prompt, AlpacaEval's
        win rates, its length-controlled model's, versions.

    Raises:
        JudgeFailed: A pair was not judged; what was is kept.
    """
    with TemporaryDirectory() as scratch:
        job = _job(questions, answers, server, options, Path(scratch))
        job["judgements"] = str(folder / "judgements.jsonl")
        Path(scratch, "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [options.python, str(_WORKER), f"{scratch}/job.json"]
        _work(command, server, folder / "judge.log", len(questions))
        found: dict[str, Any] = json.loads(Path(job["result"]).read_text(encoding="utf-8"))
    if found["missing"] > options.allow_missing:
        raise JudgeFailed(
            f"{server.model} at {server.url} left {found['missing']} of {len(questions)} pairs unjudged. "
            f"The last failure: {found['reason']}. The same command asks for these alone"
        )
    return found


def _job(
    questions: Sequence[Prompt],
    answers: Mapping[Form, Sequence[str]],
    server: JudgeServer,
    options: Options,
    scratch: Path,
) -> dict[str, Any]:
    config = scratch / "config" / "judge" / "configs.yaml"
    config.parent.mkdir(parents=True)
    return {
        "model_outputs": _outputs(questions, answers["parallel"], "parallel"),
        "reference_outputs": _outputs(questions, answers["baseline"], "baseline"),
        "url": server.url,
        "request": _request(server),
        "config": str(config),
        "hub_file": _hub_file(scratch, questions, options),
        "result": str(scratch / "result.json"),
        "attempts": 2,
        "give_up_after": 2 * options.together + 2,
        "together": options.together,
        "glm": options.glm,
        "seed": options.seed,
        "bootstrap": options.bootstrap,
        "bootstrap_seed": BOOTSTRAP_SEED,
        "allow_missing": options.allow_missing,
    }


def _outputs(questions: Sequence[Prompt], texts: Sequence[str], name: str) -> list[dict[str, str]]:
    return [
        {"instruction": question.text, "output": text, "generator": name}
        for question, text in zip(questions, texts, strict=True)
    ]


def _request(server: JudgeServer) -> dict[str, Any]:
    """What is changed in AlpacaEval's own way to ask."""
    return {
        "model_name": server.model,
        "requires_chatml": True,
        "price_per_token": 0,
        "n_retries": 1,  # the client's own follow Retry-After; AlpacaEval's go by words
        "client_kwargs": {"timeout": server.timeout, "max_retries": server.retries},
    }


def _hub_file(scratch: Path, questions: Sequence[Prompt], options: Options) -> str:
    """The file of difficulties in the form in which AlpacaEval's hub has it."""
    path = scratch / "df_gamed.csv"
    values = options.difficulty or [0.0] * len(questions)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "index", "instruction_difficulty"])
        writer.writerows(["none", index, value] for index, value in enumerate(values))
    return str(path)


def _work(command: list[str], server: JudgeServer, log: Path, count: int) -> None:
    environment = {
        "LOGNAME": "evaluation",  # AlpacaEval asks who runs it, which fails for a user without a name
        **os.environ,
        "OPENAI_API_KEY": server.key,
        "OPENAI_API_BASE": server.url,
        "OPENAI_CLIENT_CONFIG_PATH": os.devnull + ".none",
        "PYTHON_DOTENV_DISABLED": "1",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    for name in ("OPENAI_API_KEYS", "OPENAI_ORGANIZATION_IDS", "IS_ALPACA_EVAL_2"):
        environment.pop(name, None)
    with log.open("w", encoding="utf-8") as errors, progress(count, "judgements") as done:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        with process:
            assert process.stdout is not None
            try:
                for _ in process.stdout:
                    done()
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:] or ["no message"]
        raise JudgeFailed(f"AlpacaEval ended with status {process.returncode}: {last[0]} (all of it: {log})")
