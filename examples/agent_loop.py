"""An agent that splits a task, works on its parts at once, and goes on with what is ready first.

Each answer decodes its own independent parts side by side, and the agent has several answers under way; one
`Client` holds the limits for all of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pasta_async

PARTS = {
    "drinks": "Compare tea and coffee: origin, taste, health.",
    "sleep": "Give three tips for better sleep.",
    "city": "What should a visitor see, eat and avoid in Lisbon?",
}


@dataclass(frozen=True)
class Finding:
    """What the agent learned from one part."""

    part: str
    answer: pasta_async.Generation


async def work_on(client: pasta_async.Client, part: str, prompt: str) -> Finding:
    """One step of the agent; a tool call or a further question would follow here."""
    return Finding(part, await client.generate(prompt, max_tokens=400))


async def main() -> None:
    """Ask about all parts at once; the first answer that fails would end the others."""
    limits = pasta_async.Limits(client_threads=32, timeout=60, on_failure="sequence")
    async with pasta_async.Client(limits=limits) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(work_on(client, part, prompt)) for part, prompt in PARTS.items()]
        for ready in asyncio.as_completed(tasks):
            finding = await ready
            answer = finding.answer
            print(f"{finding.part}: {answer.text}")
            print(f"  {len(answer.threads)} threads, {answer.usage.completion_tokens} tokens, ", end="")
            print(f"{answer.critical_path} of them one after another")


if __name__ == "__main__":
    asyncio.run(main())
