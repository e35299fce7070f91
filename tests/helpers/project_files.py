"""The files of the project."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT: Path = Path(__file__).resolve().parents[2]


def project_files() -> list[str]:
    """Names of the files that git would publish: tracked and new ones, without ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.check_output(command, cwd=ROOT, text=True)
    return sorted(name for name in listing.split("\0") if name and (ROOT / name).exists())
