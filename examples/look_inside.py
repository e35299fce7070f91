"""For researchers: what the model wrote, thread by thread, against the baseline."""

from __future__ import annotations

import asyncio

import pasta_async

PROMPT = (
    "Can you compare the prices of Goveri and Lumita? At Goveri the lamp costs 6 coins, the bottle 3 and the "
    "blanket 2. At Lumita the lamp costs 5 coins, the bottle 3 and the blanket 4."
)


async def main() -> None:
    """Decode the prompt both ways and compare."""
    async with pasta_async.Client() as client:
        answer = await client.generate(PROMPT)
        baseline = await client.generate(PROMPT, baseline=True)
    print(answer.document.format())
    for thread in answer.threads:
        prefill = [(request.prompt_tokens, request.cached_tokens) for request in thread.requests]
        print(
            f"thread {thread.thread} {thread.topic!r}: {thread.tokens} tokens, context and cached {prefill}"
        )
    print(f"theoretical speed-up {answer.theoretical_speedup(baseline):.2f}")


if __name__ == "__main__":
    asyncio.run(main())
