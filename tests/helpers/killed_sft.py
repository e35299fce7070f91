"""Finetune, and die in the middle of writing the second checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pasta_async.training.sft import SftSettings, sft


def killed_sft(settings: SftSettings) -> bool:
    """Run `sft` in a process that dies."""
    replace, seen = Path.replace, list[Path]()

    def replaced(old: Path, new: Path) -> Path:
        """A checkpoint gets its name by this call: the second one does not."""
        if new.name == "checkpoint.pt":
            seen.append(new)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(old, new)

    Path.replace = replaced  # type: ignore[method-assign, assignment]
    return sft(settings)
