"""The report written out: a page that needs nothing else, plots as files, tables as Markdown."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from pasta_async.evals.records import cell, markdown_table
from pasta_async.evals.report.plots import render
from pasta_async.evals.report.style import DARK, LIGHT
from pasta_async.trace.rounds import rounds
from pasta_async.trace.standalone import standalone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pasta_async.evals.report.sections import Plot, Rows, Section
    from pasta_async.results import Generation

    Answers = Mapping[str, tuple[Generation, Generation | None]]

__all__ = ["write_report"]


def write_report(folder: Path, found: Sequence[Section], answers: Answers, *, title: str) -> None:
    """Write `index.html`, a PNG file for each plot (and one for dark pages), and `tables.md`.

    Args:
        folder: Is made if need be; files of the same names are written over.
        found: What the report says.
        answers: Answers, and perhaps their baselines, whose timelines are drawn.
        title: Of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for plot in (plot for section in found for plot in section.plots):
        (folder / f"{plot.name}.png").write_bytes(render(plot.drawing, LIGHT, "png"))
        (folder / f"{plot.name}-dark.png").write_bytes(render(plot.drawing, DARK, "png"))
    (folder / "index.html").write_text(_page(found, answers, title), encoding="utf-8")
    (folder / "tables.md").write_text(_markdown(found), encoding="utf-8")


def _markdown(found: Sequence[Section]) -> str:
    blocks: list[str] = []
    for section in found:
        blocks += [f"## {section.title}", *section.words]
        for caption, rows in section.tables:
            blocks += [f"{caption}:", markdown_table(rows)]
    return "\n\n".join(blocks) + "\n"


def _page(found: Sequence[Section], answers: Answers, title: str) -> str:
    page = standalone("evaluation.html", ["evals/report", "trace"])
    names = [section.title for section in found]
    data = [_data(answer, baseline) for answer, baseline in answers.values()]
    parts = {
        "policy": page.policy(),
        "title": escape(title),
        "contents": "".join(map(_link, [*names[:-1], *map(_of, answers), *names[-1:]])),
        "sections": "".join(map(_section, found[:-1])),
        "timelines": "".join(map(_timeline, answers)),
        "origin": "".join(map(_section, found[-1:])),
        "data": json.dumps(data).replace("<", r"\u003c"),
    }
    return re.sub(r"<!--(\w+)-->", lambda name: parts[name[1]], page.html)


def _section(section: Section) -> str:
    words = "".join(f"<p>{escape(text)}</p>" for text in section.words)
    drawn = "".join(map(_plot, section.plots))
    tables = "".join(_table(caption, rows) for caption, rows in section.tables)
    figures = f'<div class="plots">{drawn}</div>' if drawn else ""
    body = f"{figures}{tables}"
    if len(section.plots) == len(section.tables) == 1:
        body = f'<div class="pair">{body}</div>'
    head = f'<section class="card" id="{_id(section.title)}"><h2>{escape(section.title)}</h2>'
    return f"{head}{words}{body}</section>"


def _plot(plot: Plot) -> str:
    light, dark = (_data_url(render(plot.drawing, theme, "svg")) for theme in (LIGHT, DARK))
    return (
        f'<picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="{escape(plot.says)}"></picture>'
    )


def _table(caption: str, rows: Rows) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    cells = ("".join(f"<td>{escape(cell(row.get(name, '-')))}</td>" for name in rows[0]) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    inner = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    frame = f'class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"'
    return f"<div {frame}><table>{inner}</table></div>"


def _timeline(label: str) -> str:
    title = _of(label)
    return (
        f'<section class="card" id="{_id(title)}"><h2>{escape(title)}</h2><div class="timeline"></div>'
        '<dl class="numbers"></dl></section>'
    )


def _data(answer: Generation, baseline: Generation | None) -> dict[str, Any]:
    return {
        "answer": answer.model_dump(mode="json"),
        "baseline": baseline.model_dump(mode="json") if baseline else None,
        "rounds": [asdict(each) for each in rounds(answer)],
    }


def _of(label: str) -> str:
    return f"Timeline: {label}"


def _link(title: str) -> str:
    return f'<li><a href="#{_id(title)}">{escape(title)}</a></li>'


def _id(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _data_url(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
