"""Draw, and die when some answers are there: `killed_sampling.py JOURNAL ANSWERS`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from draws import WRITTEN, draw

from pasta_async.testing import ScriptedBackend
from pasta_async.training.sample import Drawing


def die(drawing: Drawing) -> None:
    if drawing.totals["answers"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    draw(ScriptedBackend(WRITTEN), Path(sys.argv[1]), after_each=die)
