"""For web backends and agents: one client for the whole process, many answers at once, each streamed."""

from __future__ import annotations

import asyncio

import pasta_async

PROMPTS = [
    "Describe the lamps Kemora and Dapilo. Kemora is red, comes from Tafi, weighs 3 kilos and is good for "
    "quiet evenings. Dapilo is blue, comes from Noru, weighs 5 kilos and is good for rainy days.",
    "Add up the fruits. Mireko has 2 apples, 3 plums and 2 figs. Sotani has 4 pears, 2 lemons and 5 melons.",
    "A box starts with 6 shells. Then Rimako adds 5. Then Tolena takes 3. Then Hibeko takes 4. "
    "Follow the steps.",
]


async def handle(client: pasta_async.Client, prompt: str) -> str:
    """What a request handler does; if its caller goes away, every thread of the answer ends with it."""
    async with client.stream(prompt) as answer:
        return "".join([delta async for delta in answer.text_deltas()])


async def main() -> None:
    """Answer all prompts on one connection pool and one set of limits."""
    limits = pasta_async.Limits(client_threads=32, timeout=120)
    async with pasta_async.Client(limits=limits) as client:
        for text in await asyncio.gather(*(handle(client, prompt) for prompt in PROMPTS)):
            print(text)


if __name__ == "__main__":
    asyncio.run(main())
