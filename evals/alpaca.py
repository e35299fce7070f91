r"""AlpacaEval: how often a judge prefers the parallel answer to the sequential one.

    python -m pasta_async.evals.answers --backend http://127.0.0.1:30000 --prompts alpaca_eval.jsonl \
        --max-tokens 2048 --out results/alpaca/answers.jsonl
    python -m pasta_async.evals.alpaca results/alpaca/answers.jsonl \
        --judge https://api.example.com/v1 --judge-model NAME --out results/alpaca

AlpacaEval's own package writes the judge's prompts and flips the order of the answers, reads the
log-probabilities, and fits its length-controlled model. The requests are the project's own, so that
judgements are kept one by one. Nothing is fetched.
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
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from pydantic import Field

from pasta_async.cli.command import Command
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.evals.answers import FORMS, Answer, theoretical
from pasta_async.evals.instruments import Forms, InstrumentSettings, instrument
from pasta_async.evals.records import grouped, markdown_table, write_rows
from pasta_async.jobs import Journal
from pasta_async.training.endpoint import Comparer, Endpoint, EndpointSettings, collect
from pasta_async.training.statistics import estimate, format_estimate

_BOOTSTRAP_SEED = 0
_CONFIG = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's own way to ask: one token, the probabilities of the two names."""
_LENGTH_MODEL = "length_controlled_minimal"
_FIELDS = ("max_tokens", "temperature", "logprobs", "top_logprobs")
_PACKAGES = ("alpaca_eval", "openai", "scikit-learn", "pandas", "numpy", "patsy", "scipy")


class JudgeFailedError(PastaError):
    """Not every pair was judged. What was judged is kept, and the next run goes on from there."""


class AlpacaSettings(InstrumentSettings, EndpointSettings):
    """What is judged, by whom, and how."""

    judge: str = Field(description="base URL of an OpenAI-compatible server")
    judge_model: str = Field(default="gpt-4-1106-preview", description="the model that judges")
    allow_missing: int = Field(default=0, ge=0, description="pairs that may stay without a judgement")
    bootstrap: int = Field(default=200, ge=0, description="fits of the length model, for its interval")
    seed: int = Field(default=0, description="AlpacaEval's, for which answer is shown first")


def judge(parallel: Sequence[Answer], plain: Sequence[Answer], settings: AlpacaSettings) -> dict[str, Any]:
    """Judge the parallel answers against the plain ones; judgements in `out` are not asked for again.

    The judge's key is read from the environment, and never written down.

    Returns:
        The preference for parallel (0 to 1, None where it is missing) for each prompt, AlpacaEval's win
        rates, its length-controlled model's with a 95% interval, versions.

    Raises:
        JudgeFailedError: More pairs than `allow_missing` were not judged.
        PastaError: The judge cannot be used at all.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    with _alpaca_eval(settings.out / "judge.log") as terminal:
        rows, config = _annotations({"baseline": plain, "parallel": parallel}, settings, terminal)
        figures = _metrics(rows, settings.bootstrap)
    preferences = [None if math.isnan(p := row["preference"] or math.nan) else p - 1 for row in rows]
    return {
        **figures,
        "preferences": preferences,
        "missing": preferences.count(None),
        "judge_config": config,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }


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


def _annotations(
    forms: Mapping[str, Sequence[Answer]], settings: AlpacaSettings, terminal: TextIO
) -> tuple[list[Any], dict[str, Any]]:
    """The answers with AlpacaEval's preferences, in the order of the prompts, and its configuration."""
    from alpaca_eval import utils
    from alpaca_eval.annotators import PairwiseAnnotator

    def complete(prompts: Sequence[str], **kwargs: Any) -> dict[str, list[Any]]:
        messages = {prompt: utils.prompt_to_chatml(prompt.strip()) for prompt in prompts}
        with contextlib.redirect_stderr(terminal):  # it shows the progress
            replies = asyncio.run(_ask(messages, {name: kwargs[name] for name in _FIELDS}, settings))
        completions = [_completion(replies.get(prompt)) for prompt in prompts]
        return {"completions": [one["text"] for one in completions], "completions_all": completions}

    annotator = PairwiseAnnotator(annotators_config=_CONFIG, seed=settings.seed, caching_path=None)
    one: Any = next(iter(annotator.annotators.values()))
    one.fn_completions = complete
    plain, parallel = (
        [{"instruction": one.question, "output": one.text, "generator": name} for one in forms[name]]
        for name in FORMS
    )
    rows: list[Any] = annotator.annotate_head2head(plain, parallel, chunksize=None)
    if [row["instruction"] for row in rows] != [answer.question for answer in forms["baseline"]]:
        raise ValueError("AlpacaEval returned the judgements in another order than the prompts'")
    (config,) = utils.load_configs(str(annotator.annotators_config)).values()
    template = hashlib.sha256(one.prompt_template.encode()).hexdigest()
    return rows, {**config, "prompt_template_sha256": template}


async def _ask(
    prompts: Mapping[str, Any], fields: dict[str, Any], settings: AlpacaSettings
) -> dict[str, Mapping[str, float]]:
    """The log-probabilities of the judge's replies, by prompt.

    Raises:
        JudgeFailedError: More of them are missing than may be.
    """
    with Journal(settings.out / "judgements.jsonl", {"judgements": "alpaca-eval"}) as journal:
        async with Endpoint(settings.judge, settings.judge_model, settings, **fields) as endpoint:
            comparer = Comparer(endpoint, journal)
            replies, reasons = await collect(
                prompts, lambda prompt: comparer.logprobs(prompts[prompt]), settings.in_flight
            )
    if len(reasons) > settings.allow_missing or not replies:
        raise JudgeFailedError(
            f"{settings.judge_model} left {len(reasons)} of {len(prompts)} pairs unjudged: "
            f"{'; '.join(dict.fromkeys(reasons.values()))}. The same command asks for these alone"
        )
    return replies


def _completion(logprobs: Mapping[str, float] | None) -> dict[str, Any]:
    """A reply as AlpacaEval's own client would return it."""
    tokens = [{"token": token, "logprob": value} for token, value in (logprobs or {}).items()]
    return {"text": "name" if tokens else "", "logprobs": {"content": [{"top_logprobs": tokens}]}}


def _metrics(rows: list[Any], bootstrap: int) -> dict[str, Any]:
    """AlpacaEval's figures, and those of its length-controlled model on prompts drawn with replacement."""
    import numpy as np
    import pandas as pd
    from alpaca_eval import metrics
    from alpaca_eval.metrics import glm_winrate

    annotations: Any = pd.DataFrame(rows)
    annotations["preference"] = annotations["preference"].astype(float)
    rates = {name: float(value) for name, value in metrics.get_winrate(annotations).items()}
    lengths = annotations["output_1"].str.len() - annotations["output_2"].str.len()
    if len(annotations) < 5 or not lengths.std() > 0:
        reason = "it takes five prompts, and answers of different lengths"
        return {"length_controlled_win_rate": {"reason": reason}, "alpaca_eval": rates}
    columns = {"model": "none", "index": range(len(annotations)), "instruction_difficulty": 0.0}
    hub_file = pd.DataFrame(columns).to_csv(index=False)  # its model of difficulties is not used
    glm_winrate.hf_hub_download = lambda **_: io.StringIO(hub_file)

    def fit(some: Any) -> dict[str, float]:
        fitted = glm_winrate.get_length_controlled_winrate(
            some,
            glm_name=_LENGTH_MODEL,
            save_weights_dir=None,
            is_add_glm_preference_inplace=False,
            is_warn_extreme_changes=False,
        )
        return {name: float(fitted[name]) for name in ("length_controlled_winrate", "lc_standard_error")}

    draw = np.random.default_rng(_BOOTSTRAP_SEED)
    draws: list[float] = []
    for _ in range(bootstrap):
        some = annotations.iloc[draw.integers(len(annotations), size=len(annotations))]
        with contextlib.suppress(ValueError):  # a draw whose answers are all of one length
            draws.append(fit(some)["length_controlled_winrate"])
    fitted = fit(annotations)
    value = fitted["length_controlled_winrate"]
    low, high = map(float, np.quantile(draws or [value], [0.025, 0.975]))
    controlled = {"value": value, "low": low, "high": high, "draws": len(draws)}
    return {"length_controlled_win_rate": controlled, "alpaca_eval": {**rates, **fitted}}


def _measure(settings: AlpacaSettings, forms: Forms) -> dict[str, Any]:
    """Judge the first pass, and write `judged.jsonl`."""
    if find_spec("alpaca_eval") is None:
        raise InvalidRequestError("judging needs alpaca-eval: pip install 'pasta_async[evals]'")
    plain, parallel = ([one for one in forms[form] if not one.number] for form in FORMS)
    text, count = Counter(one.question for one in plain).most_common(1)[0]
    if count > 1:  # AlpacaEval tells prompts apart by their text
        raise InvalidRequestError(f"{settings.answers}: a prompt stands there {count} times: {text!r}")
    judged = judge(parallel, plain, settings)
    preferences = zip(plain, judged["preferences"], strict=True)
    rows = ({"instruction": one.question, "preference": preference} for one, preference in preferences)
    write_rows(settings.out / "judged.jsonl", rows)
    return {
        "judge": {"url": settings.judge, "model": settings.judge_model, "config": judged["judge_config"]},
        "length_control": _LENGTH_MODEL,
        "seeds": {"alpaca_eval": settings.seed, "bootstrap": _BOOTSTRAP_SEED},
        "versions": judged["versions"],
        **_outcome(parallel, plain, judged),
    }


def _outcome(parallel: Sequence[Answer], plain: Sequence[Answer], judged: dict[str, Any]) -> dict[str, Any]:
    """Win rates in percent with 95% intervals, lengths in characters, and the theoretical speed-up."""
    judgements = [*zip(plain, judged["preferences"], strict=True)]
    forms = {"baseline": plain, "parallel": parallel}
    return {
        **_win_rate(judgements),
        **{name: judged[name] for name in ("length_controlled_win_rate", "alpaca_eval", "missing")},
        "by_dataset": [
            {"dataset": name, **_win_rate(own)}
            for name, own in grouped(judgements, lambda one: one[0].family).items()
        ],
        "mean_length": {form: fmean(len(one.text) for one in found) for form, found in forms.items()},
        "empty": {form: sum(not one.text.strip() for one in found) for form, found in forms.items()},
        "same_text": sum(a.text == b.text for a, b in zip(parallel, plain, strict=True)),
        "theoretical_speedup": theoretical(parallel, plain),
        "cut_by_length": {form: fmean(one.ended_by_length for one in own) for form, own in forms.items()},
        "malformed": fmean(not one.well_formed for one in parallel),
        "with_promises": fmean(one.promises > 0 for one in parallel),
    }


def _win_rate(judgements: Sequence[tuple[Answer, float | None]]) -> dict[str, Any]:
    known = [100 * value for _, value in judgements if value is not None]
    return {"prompts": len(judgements), "win_rate": estimate(known, "arithmetic") if known else None}


def tables(result: dict[str, Any]) -> str:
    """The result as two tables: all prompts, and by source."""
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
    return "\n\n".join(map(markdown_table, ([whole], sources)))


main: Command = instrument(
    AlpacaSettings, _measure, "alpaca", __doc__, needed=FORMS, tables=tables, resumes=True
)

if __name__ == "__main__":
    main()
