"""What parallel decoding gains on the hardware at hand: the real SGLang, a model's shape, given answers.

    python -m pasta_async.evals.hardware --shape 8b --documents documents.jsonl --out h200
    python -m pasta_async.evals.hardware --backend http://127.0.0.1:30000 --model 8b --documents ... --out ...

One run, one table. Speed does not depend on what weights are worth, so random ones of a model's shape do
(`random_model`), with answers that are written under force (`forced`). The first form makes the model's
folder, starts SGLang on it with weights of its own making, and stops it in the end; the second takes a server
that runs already, started with --enable-custom-logit-processor. Measured are

- forked against sequential answers, one at a time (`speed`) and under load (`load`),
- a decode step with 1, 2, 4, 8 threads on one prefix, against what reading the memory takes at least,
- what the prefix cache had at forks and at joins, and whether to cut main at a promise (`fork_modes`).

Rows are kept in the folder --out, which `pasta_async.evals.report` reads; a run that was broken off goes on.
"""

from __future__ import annotations

from pasta_async.evals.hardware.steps import Step, Traffic, copy_bandwidth, decode_steps

__all__ = ["Step", "Traffic", "copy_bandwidth", "decode_steps"]
