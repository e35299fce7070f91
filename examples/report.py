"""A report by a template: six sections at once, then a summary that sees them all.

python examples/report.py "Trees in cities"
"""

from __future__ import annotations

import asyncio
import sys

import pasta_async
from pasta_async import After, Plan, Tokens

SECTIONS = ("Background", "Benefits", "Costs", "Risks", "Examples", "Outlook")


def plan() -> Plan:
    """A hole for each section, one for the summary."""
    body = "".join(f"## {name}\n{{{name.lower()}}}\n\n" for name in SECTIONS)
    names = [name.lower() for name in SECTIONS]
    holes = {name: (Tokens(90),) for name in names}
    return Plan(f"{body}## Summary\n{{summary}}\n", **holes, summary=(After(*names), Tokens(90)))


async def main(subject: str) -> None:
    """Print the report as it comes, in order."""
    async with pasta_async.Client() as client:
        async with client.fill_stream(f"Write a short report: {subject}.", plan()) as stream:
            async for piece in stream.text_deltas():
                print(piece, end="", flush=True)
        filled = await stream.result()
    print(f"\n{filled.critical_path} of {filled.usage.completion_tokens} tokens one after another")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "trees in cities"))
