"""Ways to decode one answer in parallel, compared on the same engine, prompts and token counts.

`python -m pasta_async.evals.methods --help` runs them; each is a small strategy in `strategies` or, for
SGLang's own frontend, in `frontend`.
"""

from __future__ import annotations

from pasta_async.evals.methods.parts import Part, rounds
from pasta_async.evals.methods.strategies import METHODS
from pasta_async.evals.methods.track import Case, Engine, Method, Played, Track, cases_of, open_engine, play

__all__ = [
    "METHODS",
    "Case",
    "Engine",
    "Method",
    "Part",
    "Played",
    "Track",
    "cases_of",
    "open_engine",
    "play",
    "rounds",
]
