"""Agent frameworks that speak OpenAI's API use `pasta-async serve` unchanged: pydantic-ai and LiteLLM.

pasta-async serve &                     # listens on http://127.0.0.1:8000
python examples/agent_frameworks.py http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import asks the network for prices

import litellm
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "pasta-smol"
PROMPT = "Compare tea and coffee: origin, taste, health."


async def with_pydantic_ai(url: str) -> str:
    """An agent of pydantic-ai; its text streams like that of any other model."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="unused"))
    agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 400})
    async with agent.run_stream(PROMPT) as run:
        async for _ in run.stream_text(delta=True):
            pass
        return await run.get_output()


async def with_litellm(url: str) -> str:
    """LiteLLM's provider for whatever is compatible with OpenAI."""
    llm: Any = litellm  # its types are not complete
    reply = await llm.acompletion(
        model=f"openai/{MODEL}",
        api_base=f"{url}/v1",
        api_key="unused",
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_tokens=400,
    )
    return reply.choices[0].message.content


async def main(url: str) -> None:
    """Ask through both."""
    print("pydantic-ai:", await with_pydantic_ai(url))
    print("LiteLLM:", await with_litellm(url))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
