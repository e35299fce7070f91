"""The command: results in, a page, plots and tables out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pasta_async.evals.report as about
from pasta_async.cli.command import ending
from pasta_async.evals.command import positive
from pasta_async.evals.report.reading import read_results

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the results and write the report."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="report", description=about.__doc__, formatter_class=form)
    parser.add_argument(
        "results", nargs="+", metavar="[LABEL=]RESULT", help="a file of results, or an answer"
    )
    parser.add_argument("--out", type=Path, default=Path("report"), help="the folder that is written")
    parser.add_argument("--title", default="Parallel decoding, measured")
    parser.add_argument("--target", type=positive, help="latency target of the goodput, in seconds")
    options = parser.parse_args(arguments)
    with ending():
        results = read_results(options.results)
    from pasta_async.evals.report.page import write_report  # draws, so it takes its time
    from pasta_async.evals.report.sections import sections

    found = sections(results, target=options.target)
    write_report(options.out, found, results.answers, title=options.title)
    print(f"{options.out / 'index.html'}, with its plots and tables.md beside it")


if __name__ == "__main__":
    main()
