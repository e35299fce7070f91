"""A report written out: a page that needs nothing else, plots as files, tables as Markdown."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta_async.evals.records import cell, markdown_table
from pasta_async.evals.report.plots import render
from pasta_async.trace.page import standalone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

__all__ = ["Plot", "Rows", "Section", "slug", "write_report"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, with its file name and what it shows in words."""

    name: str
    description: str
    figure: Figure


@dataclass(slots=True)
class Section:
    """A part of a report."""

    title: str
    texts: list[str] = field(default_factory=list[str])
    plots: list[Plot] = field(default_factory=list[Plot])
    tables: list[tuple[str, Rows]] = field(default_factory=list[tuple[str, Rows]])
    """Captions and rows."""


def write_report(folder: Path, sections: Sequence[Section], *, title: str) -> None:
    """Write `index.html`, a PNG file for each plot, and `tables.md`.

    Args:
        folder: Is made if need be; files of the same names are written over.
        sections: What the report says.
        title: Of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for plot in (plot for section in sections for plot in section.plots):
        (folder / f"{plot.name}.png").write_bytes(render(plot.figure, "png"))
    (folder / "index.html").write_text(_page(sections, title), encoding="utf-8")
    (folder / "tables.md").write_text(_markdown(sections), encoding="utf-8")


def _markdown(sections: Sequence[Section]) -> str:
    blocks: list[str] = []
    for section in sections:
        blocks += [f"## {section.title}", *section.texts]
        for caption, rows in section.tables:
            blocks += [f"{caption}:", markdown_table(rows)]
    return "\n\n".join(blocks) + "\n"


def _page(sections: Sequence[Section], title: str) -> str:
    import jinja2

    page = standalone("evaluation.html", ["evals/report", "trace"])
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        block_start_string="<!--%",  # braces belong to the styles inside the page
        block_end_string="%-->",
        variable_start_string="<!--=",
        variable_end_string="-->",
        comment_start_string="<!--#",
        comment_end_string="#-->",
    )
    filters: dict[str, Any] = environment.filters
    filters.update(slug=slug, cell=cell, image=_data_url)
    template = environment.from_string(page.html)
    return template.render(policy=page.policy, title=title, sections=sections)


def slug(title: str) -> str:
    """A title as it stands in file names and links."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _data_url(plot: Plot) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(render(plot.figure, 'svg')).decode()}"
