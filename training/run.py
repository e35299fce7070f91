"""Make and compare models by a recipe: `python -m pasta_async.training.run RECIPE`.

RECIPE is a TOML file, or the name of one that comes with the package. Everything goes to one folder: data,
models (`stage1/NAME/model`, `round2/lambda4/model`), samples, what was measured, a report. What is done is
skipped; after Ctrl-C, a crash or `kill -9` the same command goes on. A step whose settings or inputs changed
is done again, with all that depends on it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_async.cli.command import ending
from pasta_async.training.recipe.checking import check_flags
from pasta_async.training.recipe.execution import execute
from pasta_async.training.recipe.ledger import Ledger
from pasta_async.training.recipe.plan import Plan, needed
from pasta_async.training.recipe.reading import read_recipe, recipe_path
from pasta_async.training.recipe.report import minutes, write_run_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.recipe.step import Step

__all__ = ["main", "run"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason, Ctrl-C with 130."""
    options = _options(arguments)
    with ending(resumes=True):
        run(options)


def run(options: argparse.Namespace) -> None:
    """Plan, run what is due, report.

    Raises:
        PastaError: The recipe does not fit, before anything is run; or a step failed.
    """
    path = recipe_path(options.recipe)
    recipe = read_recipe(path, options.set)
    out: Path = options.out or Path("runs") / path.stem
    plan = Plan(recipe, out)
    steps = needed(plan.steps, options.only) if options.only else plan.steps
    ledger = Ledger(out, plan.steps)
    if not options.report:
        check_flags(steps)
    if options.dry_run:
        _show(steps, ledger)
        return
    if not options.report:
        execute(steps, ledger, out, options.jobs)
        print(f"{len(steps)} steps are done; they took {minutes(steps, ledger):.1f} minutes")
    if report := write_run_report(plan, ledger):
        print(f"{report / 'index.html'}, with its plots and tables.md beside it")


def _show(steps: Sequence[Step], ledger: Ledger) -> None:
    for step in steps:
        print(f"# {step.name}{' (done)' if ledger.finished(step) else ''}\n{step.shown}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="pasta_async.training.run", description=__doc__, formatter_class=form
    )
    add = parser.add_argument
    add("recipe", help="a TOML file, or the name of a packaged one: pasta-tiny, llama-8b, smoke")
    add("--out", type=Path, help="folder of the run (default: runs/RECIPE)")
    add(
        "--only", nargs="+", default=[], metavar="STEP", help="run just what these steps need: round2/lambda4"
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a value over the recipe's: stage2.rounds=1",
    )
    add("--jobs", type=int, default=1, help="steps at a time (on a CPU: one for each core)")
    add("--dry-run", action="store_true", help="show every command, run none")
    add("--report", action="store_true", help="run nothing: report on what was measured so far")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
