"""Run AlpacaEval's own package on one job: `python judge_worker.py JOB.json`, in a process of its own.

The process keeps to itself what AlpacaEval does on import (it reads `.env`, sets the root logger, reads the
environment once), and the interpreter may be any that has AlpacaEval: nothing of pasta_async is imported
here. AlpacaEval makes the prompts, flips the order, asks, reads the log probabilities and fits its
length-controlled model. Two things of it are replaced: the request is wrapped, so that judgements are kept
one by one and a broken one fails alone; and the file that the length-controlled model fetches from a hub is
the job's own.
"""

# AlpacaEval, pandas and numpy leave their types open, and may be missing where this is checked.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import platform
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CONFIG = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's own way to ask: one token, the probabilities of the two names."""
_PACKAGES = ("alpaca_eval", "openai", "scikit-learn", "pandas", "numpy", "patsy", "scipy")
_HOPELESS = (401, 403, 404)
"""Status codes that no other pair would change."""


class DeadJudge(Exception):
    """Not one usable judgement."""


class Judge:
    """Asks for judgements through AlpacaEval's own function, keeps each one, and gives up on a dead judge."""

    def __init__(self, job: dict[str, Any], ask: Callable[..., Any], usable: Callable[[Any], bool]) -> None:
        self._ask, self._usable = ask, usable
        self._file = Path(job["judgements"])
        self._url: str = job["url"]
        self._attempts: int = job["attempts"]
        self._patience: int = job["give_up_after"]
        self._together: int = job["together"]
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self.reason = ""
        self._known = self._read()

    def __call__(self, prompts: list[str], **kwargs: Any) -> dict[str, list[Any]]:
        """In place of `openai_completions`; an empty completion where the judge gave none of use."""
        with ThreadPoolExecutor(self._together) as pool:
            replies = list(pool.map(lambda prompt: self._judge(prompt, kwargs), prompts))
        if not any(reply["text"] for reply in replies):  # AlpacaEval would trip over it
            raise DeadJudge
        nothing = [0.0] * len(replies)
        return {
            "completions": [reply["text"] for reply in replies],
            "price_per_example": nothing,
            "time_per_example": nothing,
            "completions_all": replies,
        }

    def _judge(self, prompt: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        asked = {name: value for name, value in kwargs.items() if name != "client_kwargs"}
        key = hashlib.sha256(json.dumps([self._url, prompt, asked], sort_keys=True).encode()).hexdigest()
        if key not in self._known:
            for _ in range(self._attempts):
                if (reply := self._reply(prompt, kwargs)) is not None:
                    self._keep(key, reply)
                    break
        print(json.dumps({"done": True}), flush=True)  # for the process that started this one
        return self._known.get(key, {"text": ""})

    def _reply(self, prompt: str, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        if self._failed_in_a_row >= self._patience:
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
            self._failed_in_a_row = self._patience if hopeless else self._failed_in_a_row + 1
            self.reason: str = reason
        return None

    def _keep(self, key: str, reply: dict[str, Any]) -> None:
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "reply": reply}, ensure_ascii=False) + "\n")
            self._known[key] = reply

    def _read(self) -> dict[str, dict[str, Any]]:
        known = dict[str, dict[str, Any]]()
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        whole, _, cut = text.rpartition("\n")
        if cut:  # by an interruption
            self._file.write_text(whole + "\n" if whole else "", encoding="utf-8")
        for row in map(json.loads, whole.splitlines()):
            known[row["key"]] = row["reply"]
        return known


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Judge the pairs of a job; returns what goes into its result file."""
    import alpaca_eval
    import pandas as pd
    from alpaca_eval.completion_parsers import logprob_parser
    from alpaca_eval.decoders import openai as transport

    logging.getLogger().setLevel(logging.WARNING)
    config, template = _config(job)

    def usable(reply: dict[str, Any]) -> bool:
        with contextlib.suppress(Exception):  # whatever a strange reply provokes in AlpacaEval's parser
            return math.isfinite(logprob_parser(reply, **config["completion_parser_kwargs"])[0])
        return False

    judge = Judge(job, transport.openai_completions, usable)
    transport.openai_completions = judge
    told: dict[str, Any] = {
        "judge_config": {**config, "prompt_template_sha256": hashlib.sha256(template).hexdigest()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }
    try:
        annotations = _annotations(alpaca_eval.evaluate, job)
    except DeadJudge:
        return {**told, "missing": len(job["model_outputs"]), "reason": judge.reason}
    preferences = [None if math.isnan(p := row["preference"] or math.nan) else p - 1 for row in annotations]
    told |= {"preferences": preferences, "missing": preferences.count(None), "reason": judge.reason}
    if told["missing"] > job["allow_missing"]:
        return told
    return {**told, **_metrics(job, pd.DataFrame(annotations))}


def _annotations(evaluate: Callable[..., Any], job: dict[str, Any]) -> list[dict[str, Any]]:
    """The judged pairs, in the order of the prompts."""
    _, annotations = evaluate(
        model_outputs=job["model_outputs"],
        reference_outputs=job["reference_outputs"],
        annotators_config=job["config"],
        name=job["model_outputs"][0]["generator"],
        precomputed_leaderboard=None,
        output_path=None,
        is_return_instead_of_print=True,
        fn_metric="get_winrate",
        sort_by="win_rate",
        caching_path=None,
        seed=job["seed"],
        annotation_kwargs={"chunksize": None},
    )
    asked = [row["instruction"] for row in job["model_outputs"]]
    if [row["instruction"] for row in annotations] != asked:
        raise SystemExit("AlpacaEval returned the judgements in another order than the prompts'")
    return annotations


def _config(job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """AlpacaEval's own configuration with the job's judge in it, as it was written; the prompt's template."""
    import yaml
    from alpaca_eval.constants import EVALUATORS_CONFIG_DIR

    (config,) = yaml.safe_load((EVALUATORS_CONFIG_DIR / _CONFIG / "configs.yaml").read_text()).values()
    template = EVALUATORS_CONFIG_DIR / config["prompt_template"]
    config["completions_kwargs"] |= job["request"]
    Path(job["config"]).write_text(json.dumps({"judge": {**config, "prompt_template": str(template)}}))
    return config, template.read_bytes()


def _metrics(job: dict[str, Any], annotations: Any) -> dict[str, Any]:
    """AlpacaEval's figures, and those of its length-controlled model on prompts drawn with replacement."""
    from alpaca_eval import metrics

    annotations["preference"] = annotations["preference"].astype(float)
    told = {"winrate": {name: float(value) for name, value in metrics.get_winrate(annotations).items()}}
    if job["glm"] is None:
        return told
    lengths = annotations["output_1"].str.len() - annotations["output_2"].str.len()
    if len(annotations) < 5 or not lengths.std() > 0:
        return {**told, "no_length_control": "it takes five prompts, and answers of different lengths"}
    fit = _length_controlled(job)
    whole = fit(annotations)
    return {**told, "length_controlled": whole, "length_controlled_draws": _resampled(job, fit, annotations)}


def _resampled(job: dict[str, Any], fit: Callable[[Any], dict[str, float]], annotations: Any) -> list[float]:
    import numpy as np

    draw = np.random.default_rng(job["bootstrap_seed"])
    found: list[float] = []
    for _ in range(job["bootstrap"]):
        some = annotations.iloc[draw.integers(len(annotations), size=len(annotations))]
        with contextlib.suppress(ValueError):  # a draw whose answers are all of one length
            found.append(fit(some)["length_controlled_winrate"])
    return found


def _length_controlled(job: dict[str, Any]) -> Callable[[Any], dict[str, float]]:
    """AlpacaEval's model, its hub file being the job's. Rows keep their label, by which difficulties join."""
    from alpaca_eval.metrics import glm_winrate

    glm_winrate.hf_hub_download = lambda **_: job["hub_file"]

    def fit(annotations: Any) -> dict[str, float]:
        found = glm_winrate.get_length_controlled_winrate(
            annotations,
            glm_name=job["glm"],
            save_weights_dir=None,
            is_add_glm_preference_inplace=False,
            is_warn_extreme_changes=False,
        )
        return {name: float(found[name]) for name in ("length_controlled_winrate", "lc_standard_error")}

    return fit


def main() -> None:
    """Read the job, do it, write its result."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(job["result"]).write_text(json.dumps(run(job)), encoding="utf-8")


if __name__ == "__main__":
    main()
