"""Ways to decode one answer in parallel, compared on the same engine, prompts and token counts.

`python -m pasta_async.evals.methods --help` runs them; each is a small strategy (`strategies`, `by_hand`).
"""

from __future__ import annotations

from pasta_async.evals.methods.strategies import METHODS
from pasta_async.evals.methods.track import (
    Case,
    Engine,
    Method,
    cases_of,
    open_engine,
    play,
    rounds,
    time_work,
    warm_up,
)

__all__ = [
    "METHODS",
    "Case",
    "Engine",
    "Method",
    "cases_of",
    "open_engine",
    "play",
    "rounds",
    "time_work",
    "warm_up",
]
