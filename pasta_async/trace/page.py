"""Pages that need nothing from outside; among them the timeline of an answer.

Their styles and scripts go into them, and by hash into their Content-Security-Policy.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import NamedTuple

from pasta_async.lang.document import Promise, Text
from pasta_async.results import Generation
from pasta_async.trace.perfetto import rounds

_PROMPT = '<section class="card" aria-label="Prompt"><h2>Prompt</h2><div class="prose">{}</div></section>'


def timeline_page(
    answer: Generation, baseline: Generation | None = None, *, prompt: str | None = None
) -> str:
    """An HTML page with a finished answer, the timeline of its threads and its numbers. It loads nothing.

    The baseline is drawn below, for comparison; the prompt is shown on top.
    """
    page = standalone("report.html")
    data = {
        "answer": answer.model_dump(mode="json"),
        "baseline": baseline.model_dump(mode="json") if baseline else None,
        "rounds": [asdict(each) for each in rounds(answer)],
    }
    parts = {
        "policy": page.policy,
        "prompt": _PROMPT.format(escape(prompt)) if prompt else "",
        "answer": "".join(_coloured(answer)),
        "written": escape(answer.document.format()),
        "data": json.dumps(data).replace("<", r"\u003c"),
    }
    return re.sub("<!--(.*?)-->", lambda place: parts[place[1]], page.html)


def _coloured(answer: Generation) -> Iterator[str]:
    """The visible text, each chunk marked with its thread."""
    thread = 0
    for node in answer.document.nodes:
        if isinstance(node, Text):
            yield f'<span data-thread="0">{escape(node.text)}</span>'
        elif isinstance(node, Promise):
            thread += 1
            if node.chunk:
                yield f'{escape(node.gap)}<span data-thread="{thread}">{escape(node.chunk.text)}</span>'


_FOLDERS = ("server/playground", "trace")  # of the package; no file name is in both
_OUTSIDE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">|<script src="([\w.-]+)"></script>')


class Standalone(NamedTuple):
    """A page with everything in it."""

    html: str
    policy: str
    """A Content-Security-Policy that allows what is in the page and nothing else."""


def standalone(page: str) -> Standalone:
    """A page of the package, by its file name, with its style sheets and scripts put in."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def put_in(found: re.Match[str]) -> str:
        tag = "style" if found[1] else "script"
        content = f"\n{_read(found[1] or found[2])}"
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{content}</{tag}>"

    html = _OUTSIDE.sub(put_in, _read(page))
    policy = (
        "default-src 'none'",
        *(f"{tag}-src {' '.join(found)}" for tag, found in hashes.items()),
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    )
    return Standalone(html, "; ".join(policy))


def _read(name: str) -> str:
    for folder in _FOLDERS:
        file = files("pasta_async").joinpath(*folder.split("/"), name)
        if file.is_file():
            return file.read_text("utf-8")
    raise FileNotFoundError(f"the package lacks {name}; it should lie in {' or '.join(_FOLDERS)}")
