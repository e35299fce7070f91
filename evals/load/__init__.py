"""Answers under load: when many are asked for at once, forked and in sequence.

`python -m pasta_async.evals.load --help` measures; `summarise` turns its rows into figures.
"""

from __future__ import annotations

from pasta_async.evals.load.driving import Answered, Block, drive
from pasta_async.evals.load.summary import Figures, figures, pays_up_to, summarise

__all__ = ["Answered", "Block", "Figures", "drive", "figures", "pays_up_to", "summarise"]
