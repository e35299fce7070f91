"""Have pairs of answers judged by AlpacaEval's own package, in a process of its own.

The process keeps to itself what AlpacaEval does on import (it reads `.env`, sets the root logger, reads the
environment once). AlpacaEval makes the prompts, flips the order, asks, reads the log probabilities and fits
its length-controlled model. Two things of it are replaced: the request is wrapped, so that judgements are
kept one by one and a broken one fails alone; and the file that the length-controlled model fetches from a
hub is made of the difficulties that are given.
"""

# AlpacaEval, pandas and numpy leave their types open, and may be missing where this is checked.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import multiprocessing
import os
import platform
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from pasta_async.cli.command import CommandSettings, Positive
from pasta_async.errors import PastaError
from pasta_async.jobs import Journal, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

__all__ = ["BOOTSTRAP_SEED", "JudgeFailedError", "JudgeSettings", "Pair", "judge", "length_model"]

BOOTSTRAP_SEED = 0
_CONFIG = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's own way to ask: one token, the probabilities of the two names."""
_PACKAGES = ("alpaca_eval", "openai", "scikit-learn", "pandas", "numpy", "patsy", "scipy")
_ATTEMPTS = 2
"""Requests for a judgement, if the reply cannot be used."""
_HOPELESS = (401, 403, 404)
"""Status codes that no other pair would change."""


class JudgeFailedError(PastaError):
    """Not every pair was judged. What was judged is kept, and the next run goes on from there."""


class JudgeSettings(CommandSettings):
    """Who judges, and how."""

    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
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


class Pair(NamedTuple):
    """A prompt and the two answers to it."""

    instruction: str
    parallel: str
    baseline: str


def length_model(difficulty: Sequence[float] | None) -> str:
    """The name of AlpacaEval's length-controlled model, with difficulties or without."""
    return "length_controlled_minimal" if difficulty is None else "length_controlled_noreg"


def judge(
    pairs: Sequence[Pair], settings: JudgeSettings, difficulty: Sequence[float] | None = None
) -> dict[str, Any]:
    """Judge the parallel answers against the baseline's; judgements in `out` are not asked for again.

    Args:
        pairs: Prompts and answers.
        settings: Who judges. The key is read from the environment here, and never written down.
        difficulty: Of each prompt, in order. None: lengths are controlled without difficulties.

    Returns:
        The preference for parallel (0 to 1, None where it is missing) for each prompt, AlpacaEval's win
        rates, its length-controlled model's, versions.

    Raises:
        JudgeFailedError: A pair was not judged, or AlpacaEval ended early; judgements that came are kept.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    log = settings.out / "judge.log"
    process = context.Process(target=_work, args=(theirs, list(pairs), settings, difficulty), daemon=True)
    process.start()
    theirs.close()
    try:
        with progress(len(pairs), "judgements") as done:
            while (found := ours.recv()) is None:
                done()
    except EOFError:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:] if log.exists() else []
        raise JudgeFailedError(f"AlpacaEval ended early: {last or 'no message'} (all of it: {log})") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if found["missing"] > settings.allow_missing:
        raise JudgeFailedError(
            f"{settings.judge_model} at {settings.judge} left {found['missing']} of {len(pairs)} pairs "
            f"unjudged. The last failure: {found['reason']}. The same command asks for these alone"
        )
    return found


# In the process that judges


def _work(
    sent: Connection, pairs: Sequence[Pair], settings: JudgeSettings, difficulty: Sequence[float] | None
) -> None:
    """Judge; sends None for each judgement, and what was found."""
    os.environ.setdefault(
        "LOGNAME", "evaluation"
    )  # asked for on import, which else fails without a user name
    os.environ |= {
        "OPENAI_API_KEY": os.environ.get(settings.judge_key, "none"),
        "OPENAI_API_BASE": settings.judge or "",
        "OPENAI_CLIENT_CONFIG_PATH": os.devnull + ".none",
        "PYTHON_DOTENV_DISABLED": "1",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    for name in ("OPENAI_API_KEYS", "OPENAI_ORGANIZATION_IDS", "IS_ALPACA_EVAL_2"):
        os.environ.pop(name, None)
    sys.stderr = (settings.out / "judge.log").open("w", buffering=1, encoding="utf-8")
    sent.send(_judged(sent, pairs, settings, difficulty))


class _Judge:
    """Asks for judgements through AlpacaEval's own function, keeps each one, and gives up on a dead judge."""

    def __init__(
        self,
        settings: JudgeSettings,
        ask: Callable[..., Any],
        usable: Callable[[Any], bool],
        sent: Connection,
    ) -> None:
        self._settings, self._ask, self._usable, self._sent = settings, ask, usable, sent
        self._journal = Journal(settings.out / "judgements.jsonl", {"judgements": "alpaca-eval"})
        self._known = {row["key"]: row["reply"] for row in self._journal.rows}
        self._give_up_after = 2 * settings.together + 2
        self._failed_in_a_row = 0
        self._lock = threading.Lock()
        self.reason = ""

    def __call__(self, prompts: list[str], **kwargs: Any) -> dict[str, list[Any]]:
        """In place of `openai_completions`; an empty completion where the judge gave none of use."""
        with ThreadPoolExecutor(self._settings.together) as pool:
            replies = list(pool.map(lambda prompt: self._judge(prompt, kwargs), prompts))
        if not any(reply["text"] for reply in replies):  # AlpacaEval would trip over it
            raise _DeadJudge
        nothing = [0.0] * len(replies)
        return {
            "completions": [reply["text"] for reply in replies],
            "price_per_example": nothing,
            "time_per_example": nothing,
            "completions_all": replies,
        }

    def _judge(self, prompt: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        asked = {name: value for name, value in kwargs.items() if name != "client_kwargs"}
        content = json.dumps([self._settings.judge, prompt, asked], sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()
        for _ in range(_ATTEMPTS):
            if key not in self._known and (reply := self._reply(prompt, kwargs)) is not None:
                with self._lock:
                    self._journal.append({"key": key, "reply": reply})
                    self._known[key] = reply
        with self._lock:
            self._sent.send(None)
        return self._known.get(key, {"text": ""})

    def _reply(self, prompt: str, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        if self._failed_in_a_row >= self._give_up_after:
            return None
        hopeless = False
        try:
            reply = self._ask([prompt], num_procs=1, **kwargs)["completions_all"][0]
            if self._usable(reply):
                self._failed_in_a_row = 0
                return reply
            reason = f"no log probabilities of the two names in its reply {reply.get('text', '')!r}"
        except Exception as error:  # whatever a broken judge provokes in AlpacaEval or its client
            hopeless = getattr(error, "status_code", None) in _HOPELESS
            reason = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failed_in_a_row = self._give_up_after if hopeless else self._failed_in_a_row + 1
            self.reason = reason
        return None


class _DeadJudge(Exception):
    """Not one usable judgement."""


def _judged(
    sent: Connection, pairs: Sequence[Pair], settings: JudgeSettings, difficulty: Sequence[float] | None
) -> dict[str, Any]:
    import pandas as pd
    import yaml
    from alpaca_eval.completion_parsers import logprob_parser
    from alpaca_eval.constants import EVALUATORS_CONFIG_DIR
    from alpaca_eval.decoders import openai as transport

    logging.getLogger().setLevel(logging.WARNING)
    (config,) = yaml.safe_load((EVALUATORS_CONFIG_DIR / _CONFIG / "configs.yaml").read_text()).values()
    template: Path = EVALUATORS_CONFIG_DIR / config["prompt_template"]
    config["completions_kwargs"] |= {
        "model_name": settings.judge_model,
        "requires_chatml": True,
        "price_per_token": 0,
        "n_retries": 1,  # the client's own follow Retry-After; AlpacaEval's go by words
        "client_kwargs": {"timeout": settings.judge_timeout, "max_retries": settings.judge_retries},
    }

    def usable(reply: dict[str, Any]) -> bool:
        with contextlib.suppress(Exception):  # whatever a strange reply provokes in AlpacaEval's parser
            return math.isfinite(logprob_parser(reply, **config["completion_parser_kwargs"])[0])
        return False

    transport.openai_completions = asking = _Judge(settings, transport.openai_completions, usable, sent)
    digest = hashlib.sha256(template.read_bytes()).hexdigest()
    found: dict[str, Any] = {
        "judge_config": {**config, "prompt_template_sha256": digest},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }
    try:
        annotations = _annotations(pairs, {**config, "prompt_template": str(template)}, settings.seed)
    except _DeadJudge:
        return {**found, "missing": len(pairs), "reason": asking.reason}
    preferences = [None if math.isnan(p := row["preference"] or math.nan) else p - 1 for row in annotations]
    found |= {"preferences": preferences, "missing": preferences.count(None), "reason": asking.reason}
    if found["missing"] > settings.allow_missing:
        return found
    return {**found, **_metrics(pd.DataFrame(annotations), settings.bootstrap, difficulty)}


def _annotations(pairs: Sequence[Pair], config: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """The judged pairs, in the order of the prompts."""
    import alpaca_eval

    def outputs(name: str) -> list[dict[str, str]]:
        return [
            {"instruction": one.instruction, "output": getattr(one, name), "generator": name} for one in pairs
        ]

    with TemporaryDirectory() as scratch:
        path = Path(scratch, "configs.yaml")
        path.write_text(json.dumps({"judge": config}))
        evaluated: Any = alpaca_eval.evaluate(
            model_outputs=outputs("parallel"),
            reference_outputs=outputs("baseline"),
            annotators_config=str(path),
            name="parallel",
            precomputed_leaderboard=None,
            output_path=None,
            is_return_instead_of_print=True,
            fn_metric="get_winrate",
            sort_by="win_rate",
            caching_path=None,
            seed=seed,
            annotation_kwargs={"chunksize": None},
        )
    annotations: list[dict[str, Any]] = evaluated[1]
    if [row["instruction"] for row in annotations] != [one.instruction for one in pairs]:
        raise ValueError("AlpacaEval returned the judgements in another order than the prompts'")
    return annotations


def _metrics(annotations: Any, bootstrap: int, difficulty: Sequence[float] | None) -> dict[str, Any]:
    """AlpacaEval's figures, and those of its length-controlled model on prompts drawn with replacement."""
    import numpy as np
    import pandas as pd
    from alpaca_eval import metrics
    from alpaca_eval.metrics import glm_winrate

    annotations["preference"] = annotations["preference"].astype(float)
    found = {"winrate": {name: float(value) for name, value in metrics.get_winrate(annotations).items()}}
    lengths = annotations["output_1"].str.len() - annotations["output_2"].str.len()
    if len(annotations) < 5 or not lengths.std() > 0:
        return {**found, "no_length_control": "it takes five prompts, and answers of different lengths"}
    values = difficulty or [0.0] * len(annotations)
    columns = {"model": "none", "index": range(len(values)), "instruction_difficulty": values}
    hub_file = pd.DataFrame(columns).to_csv(index=False)
    glm_winrate.hf_hub_download = lambda **_: io.StringIO(hub_file)

    def fit(some: Any) -> dict[str, float]:  # rows keep their label, by which difficulties join
        fitted = glm_winrate.get_length_controlled_winrate(
            some,
            glm_name=length_model(difficulty),
            save_weights_dir=None,
            is_add_glm_preference_inplace=False,
            is_warn_extreme_changes=False,
        )
        return {name: float(fitted[name]) for name in ("length_controlled_winrate", "lc_standard_error")}

    draw = np.random.default_rng(BOOTSTRAP_SEED)
    draws: list[float] = []
    for _ in range(bootstrap):
        some = annotations.iloc[draw.integers(len(annotations), size=len(annotations))]
        with contextlib.suppress(ValueError):  # a draw whose answers are all of one length
            draws.append(fit(some)["length_controlled_winrate"])
    return {**found, "length_controlled": fit(annotations), "length_controlled_draws": draws}
