"""Pages that need nothing from outside: their styles and scripts go into them, by hash into their policy."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Standalone", "standalone"]

_OUTSIDE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">|<script src="([\w.-]+)"></script>')


@dataclass(frozen=True, slots=True)
class Standalone:
    """A page with everything in it."""

    html: str
    styles: tuple[str, ...]
    """Hashes of its styles, in the form of a Content-Security-Policy."""
    scripts: tuple[str, ...]
    """Those of its scripts."""

    def policy(self, *more: str) -> str:
        """A Content-Security-Policy that allows what is in the page, what `more` says, and nothing else."""
        return "; ".join(
            (
                "default-src 'none'",
                f"script-src {' '.join(self.scripts)}",
                f"style-src {' '.join(self.styles)}",
                "img-src data:",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
                *more,
            )
        )


def standalone(page: str, folders: Sequence[str]) -> Standalone:
    """A page of the package with its style sheets and scripts put in.

    Args:
        page: File name, in the first of the folders.
        folders: Places inside the package where the files lie.
    """
    styles: list[str] = []
    scripts: list[str] = []

    def put_in(found: re.Match[str]) -> str:
        name, hashes, tag = (found[1], styles, "style") if found[1] else (found[2], scripts, "script")
        content = f"\n{_read(name, folders)}"
        hashes.append(_hash(content))
        return f"<{tag}>{content}</{tag}>"

    html = _OUTSIDE.sub(put_in, _read(page, folders))
    return Standalone(html, tuple(styles), tuple(scripts))


def _read(name: str, folders: Sequence[str]) -> str:
    for folder in folders:
        file = files("pasta_async").joinpath(*folder.split("/"), name)
        if file.is_file():
            return file.read_text("utf-8")
    raise FileNotFoundError(f"the package lacks {name}; it should lie in {' or '.join(folders)}")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
