"""AlpacaEval: how often a judge prefers the parallel answer to the plain one; see `evals.quality --alpaca`.

AlpacaEval's own package writes the judge's prompts, flips the order of the answers, and fits its
length-controlled model. Requests and the reading of replies are the project's own (`training.endpoint`), so
that judgements are kept one by one, and one reader says what a reply means. Nothing is fetched.
"""

# AlpacaEval, pandas and numpy leave their types open, and may be missing where this is checked.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import logging
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.evals.answers import FORMS, Answer
from pasta_async.evals.report import markdown_table
from pasta_async.evals.statistics import Estimate, estimate
from pasta_async.jobs import Journal
from pasta_async.training.endpoint import NAMES, Comparer, Endpoint, EndpointSettings, collect, probability

_CONFIG = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's own way to ask: one token, the probabilities of the two names."""
_LENGTH_MODEL = "length_controlled_minimal"
"""Without difficulties of prompts, which were fitted to other models' answers and another judge."""
_FIELDS = ("max_tokens", "temperature", "logprobs", "top_logprobs")


class JudgeFailedError(PastaError):
    """Not every pair was judged. What was judged is kept, and the next run goes on from there."""


def compare_forms(
    forms: Mapping[str, Sequence[Answer]],
    out: Path,
    judge: str,
    judge_model: str,
    settings: EndpointSettings,
    allow_missing: int = 0,
) -> dict[str, Any]:
    """Judge parallel answers against plain ones, of the first pass.

    The judge is a model at an OpenAI-compatible server; judgements in `out` are not asked for again. Its key
    is read from the environment, never written down.

    Returns:
        Preferences for parallel (0 to 1, None where it is missing) in order of the prompts, the win rate and
        the length-controlled one in percent, the judge, and AlpacaEval's version.

    Raises:
        JudgeFailedError: More pairs than `allow_missing` have no verdict.
        PastaError: The judge or the answers cannot be used at all.
    """
    if find_spec("alpaca_eval") is None:
        raise InvalidRequestError("--alpaca needs alpaca-eval: pip install 'pasta_async[evals]'")
    plain, parallel = ([answer for answer in forms[form] if not answer.number] for form in FORMS)
    text, count = Counter(answer.question for answer in plain).most_common(1)[0]
    if count > 1:  # AlpacaEval tells prompts apart by their text
        raise InvalidRequestError(
            f"AlpacaEval takes each prompt once; this one is there {count} times: {text!r}"
        )
    out.mkdir(parents=True, exist_ok=True)
    ask = (judge, judge_model, settings, out / "judgements.jsonl")
    with _alpaca_eval(out / "judge.log") as terminal:
        rows, config = _annotations(plain, parallel, ask, terminal)
        preferences = [_preference(row["preference"]) for row in rows]
        known = [100 * value for value in preferences if value is not None]
        missing = len(rows) - len(known)
        if missing > allow_missing or not known:
            raise JudgeFailedError(
                f"{judge_model} left {missing} of {len(rows)} pairs without a verdict, as told above: "
                "the same command asks for these alone"
            )
        controlled = _length_controlled(rows)
    return {
        "judge": {"url": judge, "model": judge_model, "config": config},
        "preferences": preferences,
        "missing": missing,
        "win rate": estimate(known, "arithmetic"),
        "length-controlled win rate": controlled,
        "version": version("alpaca_eval"),
    }


def _preference(value: float | None) -> float | None:
    """AlpacaEval's 1 to 2 as 0 to 1, for the parallel answer, which is its second."""
    return None if value is None or math.isnan(value) else value - 1


@contextlib.contextmanager
def _alpaca_eval(log: Path) -> Generator[TextIO]:
    """Import AlpacaEval without `.env` and root logger; what it says goes to a file. Gives our stderr."""
    os.environ.setdefault("LOGNAME", "evaluation")  # without a user name its import fails
    os.environ.setdefault("PYTHON_DOTENV_DISABLED", "1")
    root, terminal = logging.getLogger(), sys.stderr
    level = root.level
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stderr(file), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import alpaca_eval.annotators  # noqa: F401

        root.setLevel(level)
        yield terminal


Ask = tuple[str, str, EndpointSettings, Path]


def _annotations(
    plain: Sequence[Answer], parallel: Sequence[Answer], ask: Ask, terminal: TextIO
) -> tuple[list[Any], dict[str, Any]]:
    """The answers with AlpacaEval's preferences, in the order of the prompts, and its configuration."""
    from alpaca_eval import utils
    from alpaca_eval.annotators import PairwiseAnnotator

    def complete(prompts: Sequence[str], **kwargs: Any) -> dict[str, list[Any]]:
        messages = {prompt: utils.prompt_to_chatml(prompt.strip()) for prompt in prompts}
        with contextlib.redirect_stderr(terminal):  # it shows the progress
            replies = asyncio.run(_ask(messages, {name: kwargs[name] for name in _FIELDS}, ask))
        completions = [_completion(replies.get(prompt)) for prompt in prompts]
        return {"completions": [reply["text"] for reply in completions], "completions_all": completions}

    annotator = PairwiseAnnotator(annotators_config=_CONFIG, seed=0, caching_path=None)
    decoder: Any = next(iter(annotator.annotators.values()))
    decoder.fn_completions = complete
    theirs, ours = (
        [{"instruction": row.question, "output": row.text, "generator": row.method} for row in answers]
        for answers in (plain, parallel)
    )
    rows: list[Any] = annotator.annotate_head2head(theirs, ours, chunksize=None)
    if [row["instruction"] for row in rows] != [answer.question for answer in plain]:
        raise ValueError("AlpacaEval returned the judgements in another order than the prompts'")
    (config,) = utils.load_configs(str(annotator.annotators_config)).values()
    template = hashlib.sha256(decoder.prompt_template.encode()).hexdigest()
    return rows, {**config, "prompt_template_sha256": template}


async def _ask(prompts: Mapping[str, Any], fields: dict[str, Any], ask: Ask) -> dict[str, float]:
    """Probability that the first answer is better by the judge's reply, by prompt; the failures are told."""
    judge, judge_model, settings, path = ask
    with Journal(path, {"judgements": "alpaca-eval"}) as journal:
        async with Endpoint(judge, judge_model, settings, **fields) as endpoint:
            comparer = Comparer(endpoint, journal)
            replies, reasons = await collect(
                prompts, lambda prompt: comparer.logprobs(prompts[prompt]), settings.in_flight
            )
    for reason in dict.fromkeys(reasons.values()):
        print(reason, file=sys.stderr)
    return {prompt: probability(reply) for prompt, reply in replies.items()}


def _completion(first: float | None) -> dict[str, Any]:
    """A verdict in the form in which AlpacaEval's own client returns a reply; without one it has no text.

    AlpacaEval's parser knows the names alone. It is given the verdict that was read, not the reply: a judge
    may write a name with a space in front.
    """
    chances = {} if first is None else {NAMES[0]: first, NAMES[1]: 1 - first}
    tokens = [{"token": name, "logprob": math.log(value)} for name, value in chances.items() if value > 0]
    return {"text": "name" if tokens else "", "logprobs": {"content": [{"top_logprobs": tokens}]}}


def _length_controlled(rows: list[Any]) -> Estimate | None:
    """Win rate by AlpacaEval's length-controlled model, with its 95% interval.

    None for fewer than five prompts, and for answers of one length.
    """
    import pandas as pd
    from alpaca_eval.metrics import glm_winrate

    annotations: Any = pd.DataFrame(rows)
    annotations["preference"] = annotations["preference"].astype(float)
    lengths = annotations["output_1"].str.len() - annotations["output_2"].str.len()
    if len(annotations) < 5 or not lengths.std() > 0:
        return None
    columns = {"model": "none", "index": range(len(annotations)), "instruction_difficulty": 0.0}
    hub_file = pd.DataFrame(columns).to_csv(index=False)  # its model of difficulties is not used
    glm_winrate.hf_hub_download = lambda **_: io.StringIO(hub_file)
    fitted = glm_winrate.get_length_controlled_winrate(
        annotations,
        glm_name=_LENGTH_MODEL,
        save_weights_dir=None,
        is_add_glm_preference_inplace=False,
        is_warn_extreme_changes=False,
    )
    value, error = float(fitted["length_controlled_winrate"]), float(fitted["lc_standard_error"])
    return {"value": value, "low": value - 1.96 * error, "high": value + 1.96 * error}


def table(result: dict[str, Any]) -> str:
    """The result as a table."""
    row = {
        "AlpacaEval": result["judge"]["model"],
        "prompts": len(result["preferences"]),
        "without a verdict": result["missing"],
        "win rate, %": result["win rate"],
        "length-controlled, %": result["length-controlled win rate"],
    }
    return markdown_table([row])
