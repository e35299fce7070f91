"""Files that `pasta-async generate` leaves: a trace for Perfetto, and a page with the timeline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta_async.cli.words import fail

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.results import Generation

__all__ = ["NO_FILES", "Files"]


@dataclass(frozen=True, slots=True)
class Files:
    """Where to write; None: not at all."""

    trace: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Leave with exit code 2 if a file cannot be there, before any work is done."""
        for option, path in (("--trace", self.trace), ("--html", self.html)):
            if path and path.is_dir():
                fail(f"{option}: {path} is a folder; name a file", code=2)
            if path and not path.parent.is_dir():
                fail(f"{option}: there is no folder {path.parent}", code=2)

    def write(self, answer: Generation, baseline: Generation | None, *, prompt: str) -> None:
        """Write what was asked for.

        Args:
            answer: What is drawn.
            baseline: Drawn beside it.
            prompt: Shown on the page.
        """
        if self.trace:
            _write(self.trace, json.dumps(answer.to_perfetto(baseline)))
        if self.html:
            from pasta_async.trace import timeline_page

            _write(self.html, timeline_page(answer, baseline, prompt=prompt))


NO_FILES = Files()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")
