"""HTML pages that load nothing: the timeline of a finished answer, and the playground.

Style sheets and scripts are put into the page. Its Content-Security-Policy names them by their hashes and
forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files

from pasta_async.lang.document import Promise, Text
from pasta_async.results import Generation

_PROMPT = '<section class="card" aria-label="Prompt"><h2>Prompt</h2><div class="prose">{}</div></section>'


def timeline_page(
    answer: Generation, baseline: Generation | None = None, *, prompt: str | None = None
) -> str:
    """An HTML page with a finished answer, the timeline of its threads and its numbers.

    The baseline is drawn below, for comparison; the prompt is shown on top.
    """
    html, policy = standalone("report.html")
    data = {
        "answer": answer.model_dump(mode="json"),
        "baseline": baseline.model_dump(mode="json") if baseline else None,
    }
    parts = {
        "policy": policy,
        "prompt": _PROMPT.format(escape(prompt)) if prompt else "",
        "answer": "".join(_coloured(answer)),
        "written": escape(answer.document.format()),
        "data": json.dumps(data).replace("<", r"\u003c"),
    }
    return re.sub("<!--(.*?)-->", lambda placeholder: parts[placeholder[1]], html)


def _coloured(answer: Generation) -> Iterator[str]:
    """The visible text, each chunk marked with its thread."""
    thread = 0
    for node in answer.document.nodes:
        if isinstance(node, Text):
            yield f'<span data-thread="0">{escape(node.text)}</span>'
        elif isinstance(node, Promise):
            thread += 1
            if node.chunk:
                yield f'<span data-thread="{thread}">{escape(node.chunk.text)}</span>'


_FOLDERS = ("server/playground", "trace")  # of the package; no file name is in both
_OUTSIDE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">|<script src="([\w.-]+)"></script>')


@cache
def standalone(page: str) -> tuple[str, str]:
    """A page of the package, by its file name, with its style sheets and scripts put in.

    The second text is a Content-Security-Policy that allows these and nothing else.
    """
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inline(reference: re.Match[str]) -> str:
        tag = "style" if reference[1] else "script"
        content = f"\n{_read(reference[1] or reference[2])}"
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{content}</{tag}>"

    html = _OUTSIDE.sub(inline, _read(page))
    policy = (
        "default-src 'none'",
        *(f"{tag}-src {' '.join(sources)}" for tag, sources in hashes.items()),
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    )
    return html, "; ".join(policy)


def _read(name: str) -> str:
    places = (files("pasta_async").joinpath(folder, name) for folder in _FOLDERS)
    return next(file for file in places if file.is_file()).read_text("utf-8")
