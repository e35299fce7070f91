"""One answer, decoded in parallel by the model that ships with the package."""

from __future__ import annotations

import asyncio

import pasta_async

PROMPT = (
    "How many fruits do Velora and Tamiko have in all? "
    "Velora has 3 apples, 2 pears and 4 figs. Tamiko has 5 plums, 3 lemons and 2 melons."
)


async def main() -> None:
    """Ask, and print what came back."""
    answer = await pasta_async.generate(PROMPT)
    print(answer.text)
    print(f"{answer.usage.completion_tokens} tokens, {answer.critical_path} of them one after another")


if __name__ == "__main__":
    asyncio.run(main())
