"""The timeline of an answer as one page that needs nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING

from pasta_async.lang.document import Promise, Text
from pasta_async.trace.rounds import rounds
from pasta_async.trace.standalone import standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pasta_async.results import Generation

__all__ = ["timeline_page"]


def timeline_page(
    answer: Generation, baseline: Generation | None = None, *, prompt: str | None = None
) -> str:
    """An HTML page with the answer, the timeline of its threads and its numbers. It loads nothing.

    Args:
        answer: A finished answer.
        baseline: Drawn below it, for comparison.
        prompt: Shown on top.
    """
    page = standalone("report.html", ["trace"])
    data = {
        "answer": answer.model_dump(mode="json"),
        "baseline": baseline.model_dump(mode="json") if baseline else None,
        "rounds": [asdict(each) for each in rounds(answer)],
    }
    parts = {
        "policy": page.policy(),
        "prompt": _section("Prompt", prompt) if prompt else "",
        "answer": "".join(_coloured(answer)),
        "written": escape(answer.document.format()),
        "data": json.dumps(data).replace("<", r"\u003c"),
    }
    before, *rest = page.html.split("<!--")
    filled = [before]
    for piece in rest:
        name, _, behind = piece.partition("-->")
        filled += parts[name], behind
    return "".join(filled)


def _section(title: str, text: str) -> str:
    heading = f'<section class="card" aria-label="{title}"><h2>{title}</h2>'
    return f'{heading}<div class="prose">{escape(text)}</div></section>'


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
