"""The command: measure, write `result.json`, print a table."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pasta_async.evals.frontier as about
from pasta_async.cli.command import ending
from pasta_async.evals.frontier.measuring import FrontierSettings, measure
from pasta_async.evals.records import markdown_table
from pasta_async.evals.statistics import told
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "table"]


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows: each family, and all."""
    groups: dict[str, dict[str, Any]] = {**result["by_family"], "all": result["all"]}
    return [
        {
            "family": name,
            "prompts": figures["prompts"],
            "score %": told(figures["score"]),
            "right %": told(figures["right"]),
            "theoretical": told(figures.get("theoretical_speedup"), ".2f"),
            "length-matched": told(figures.get("length_matched_speedup"), ".2f"),
            "text tokens": figures["text_tokens"],
            "parallel %": f"{figures['parallel']['value']:.0f}",
            "synced %": f"{figures['synced']['value']:.0f}",
            "malformed %": f"{figures['malformed']['value']:.1f}",
        }
        for name, figures in groups.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason, Ctrl-C with 130."""
    settings = read_command_line(FrontierSettings, "pasta_async.evals.frontier", about.__doc__, arguments)
    with ending(resumes=True):
        result = asyncio.run(measure(settings))
    print(markdown_table(table(result)))
    if timed := result.get("wall_clock"):
        print(f"\nwall clock over {timed['prompts']} prompts: {told(timed['speedup'], '.2f')}")


if __name__ == "__main__":
    main()
