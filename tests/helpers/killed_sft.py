"""Finetune as `pasta_async.training.sft` does, and die in the middle of writing the second checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pasta_async.training.sft import main

_replace = Path.replace
_checkpoints: list[Path] = []


def _replaced(old: Path, new: Path) -> Path:
    """A checkpoint gets its name by this call: the second one does not."""
    if new.name == "checkpoint.pt":
        _checkpoints.append(new)
    if len(_checkpoints) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return _replace(old, new)


if __name__ == "__main__":
    Path.replace = _replaced  # type: ignore[method-assign, assignment]
    main()
