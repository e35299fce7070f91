"""HTML pages that load nothing: the playground, and the timeline of an answer.

Style sheets and scripts are put into the page. Its Content-Security-Policy names them by their hashes and
forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from typing import NamedTuple

from pasta_async.lang.document import Promise, Sync, Text
from pasta_async.results import Generation

_PROMPT = '<section class="card" aria-label="Prompt"><h2>Prompt</h2><div class="prose">{}</div></section>'


def timeline_page(
    answer: Generation, baseline: Generation | None = None, *, prompt: str | None = None
) -> str:
    """An HTML page with a finished answer, the timeline of its threads and its numbers.

    The baseline is drawn below, for comparison; the prompt is shown on top.
    """
    page = standalone("report.html")
    data = {
        "answer": answer.model_dump(mode="json"),
        "baseline": baseline.model_dump(mode="json") if baseline else None,
        "rounds": [asdict(joined) for joined in rounds(answer)],
    }
    parts = {
        "policy": page.policy,
        "prompt": _PROMPT.format(escape(prompt)) if prompt else "",
        "answer": "".join(_coloured(answer)),
        "written": escape(answer.document.format()),
        "data": json.dumps(data).replace("<", r"\u003c"),
    }
    return re.sub("<!--(.*?)-->", lambda placeholder: parts[placeholder[1]], page.html)


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


@dataclass(frozen=True, slots=True)
class Round:
    """The threads between two syncs. Times are seconds since the answer began."""

    threads: tuple[int, ...]
    """Numbers of the threads whose chunks were joined."""
    waiting: float
    """Time at which main began to wait for them."""
    kept: float
    """Time at which the last of them was done."""
    joined: float
    """Time at which main went on, or the answer ended."""


def rounds(answer: Generation) -> Iterator[Round]:
    """The rounds of an answer that were joined, in order, up to the first that an error broke off."""
    main = [span for span in answer.timeline if span.thread == 0]
    for numbers in _between_syncs(answer):
        records = [answer.threads[number] for number in numbers]
        if any(record.finish_reason in ("abort", "error") for record in records):
            return
        if not records:
            continue
        kept = max(answer.elapsed if record.ended is None else record.ended for record in records)
        # Main goes on with the first span that starts after the last chunk; it waited since the end of the
        # span before that one.
        joined = next((span.start for span in main if span.start >= kept), answer.elapsed)
        waiting = max((span.end for span in main if span.end <= joined), default=kept)
        yield Round(tuple(numbers), min(waiting, kept), kept, joined)


def _between_syncs(answer: Generation) -> Iterator[list[int]]:
    """The numbers of the threads of each round."""
    number = 0  # of the last promise
    numbers: list[int] = []  # of the current round
    for node in answer.document.nodes:
        if isinstance(node, Promise) and number + 1 < len(answer.threads):
            number += 1
            numbers.append(number)
        elif isinstance(node, Sync):
            yield numbers
            numbers = []
    yield numbers


_FOLDERS = ("server/playground", "trace")  # of the package; no file name is in both
_OUTSIDE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">|<script src="([\w.-]+)"></script>')


class Standalone(NamedTuple):
    """A page that loads nothing: its style sheets and scripts are in it."""

    html: str
    policy: str
    """A Content-Security-Policy that allows the scripts and styles in the page and nothing else."""


def standalone(page: str) -> Standalone:
    """A page of the package, by its file name, with its style sheets and scripts put in."""
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
    return Standalone(html, "; ".join(policy))


def _read(name: str) -> str:
    for folder in _FOLDERS:
        file = files("pasta_async").joinpath(*folder.split("/"), name)
        if file.is_file():
            return file.read_text("utf-8")
    raise FileNotFoundError(f"the package lacks {name}; it should lie in {' or '.join(_FOLDERS)}")
