"""The answer that the tests of the command line play, and how it is laid out."""

from __future__ import annotations

from pasta_async.clock import REAL_CLOCK
from pasta_async.testing import Fault, ScriptedBackend

INTRO = "Both wars reshaped Europe."
CAUSES = " The causes were many and old."
OUTCOME = " The outcome was a new map."
END = " Neither was foreseen."
TEXT = INTRO + CAUSES + OUTCOME + END
WRITTEN = (
    f'{INTRO}<promise topic="causes" tokens="20"/><async>{CAUSES}</async>'
    f'<promise topic="outcome" tokens="10"/><async>{OUTCOME}</async><sync/>{END}'
)


def scripted(*faults: Fault) -> ScriptedBackend:
    """Plays the answer in real time, without latencies."""
    return ScriptedBackend(WRITTEN, clock=REAL_CLOCK, faults=faults)
