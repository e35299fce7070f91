"""Agent frameworks that speak OpenAI's API use `pasta-async serve`: pydantic-ai, LiteLLM, LangChain.

Each gets a text, or an object that is valid whatever the model. Its fields are written in parallel, since the
schema that a framework sends has the annotations.

pip install '.[local,server]' 'pydantic-ai-slim[openai]' litellm langchain-openai
pasta-async pull pasta-smol
pasta-async serve --backend local:pasta-smol &    # MODEL below; listens on http://127.0.0.1:8000
until curl -sf http://127.0.0.1:8000/health; do sleep 1; done
python examples/agent_frameworks.py http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import asks the network for prices

import httpx
import litellm
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from pasta_async import After

MODEL = "pasta-smol"
PROMPT = "Compare tea and coffee: origin, taste, health."


class Comparison(BaseModel):
    """Origin and taste are written at once; the thread that names the better drink sees both."""

    origin: Annotated[str, Field(max_length=60)]
    taste: Annotated[str, Field(max_length=60)]
    better: Annotated[str, Field(max_length=6), After("origin", "taste")]


def pydantic_ai_model(url: str) -> OpenAIChatModel:
    """The server as a model of pydantic-ai."""
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="unused"))


async def with_pydantic_ai(url: str) -> str:
    """A text by an agent of pydantic-ai; it streams like that of any other model."""
    agent = Agent(pydantic_ai_model(url), model_settings={"temperature": 0, "max_tokens": 400})
    async with agent.run_stream(PROMPT) as run:
        async for _ in run.stream_text(delta=True):
            pass
        return await run.get_output()


async def object_with_pydantic_ai(url: str) -> Comparison:
    """An object by an agent. `NativeOutput` sends the schema; without it, the output would be a tool call."""
    agent = Agent(pydantic_ai_model(url), output_type=NativeOutput(Comparison))
    return (await agent.run(PROMPT)).output


async def with_litellm(url: str, **options: Any) -> str:
    """A text by LiteLLM's provider for servers that are compatible with OpenAI."""
    llm: Any = litellm  # its types are not complete
    reply = await llm.acompletion(
        model=f"openai/{MODEL}",
        api_base=f"{url}/v1",
        api_key="unused",
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_tokens=400,
        **options,
    )
    return reply.choices[0].message.content


async def object_with_litellm(url: str) -> Comparison:
    """An object by LiteLLM, which sends the schema; the caller parses the reply."""
    return Comparison.model_validate_json(await with_litellm(url, response_format=Comparison))


async def object_with_langchain(url: str) -> Comparison:
    """An object by LangChain's structured output, which sends the schema by default."""
    async with httpx.AsyncClient() as http:  # it does not close one of its own
        model: Any = ChatOpenAI(
            model=MODEL, base_url=f"{url}/v1", api_key=SecretStr("unused"), http_async_client=http
        )
        return await model.with_structured_output(Comparison).ainvoke(PROMPT)


async def main(url: str) -> None:
    """Ask through each framework."""
    print("pydantic-ai:", await with_pydantic_ai(url))
    print("LiteLLM:", await with_litellm(url))
    for ask in (object_with_pydantic_ai, object_with_litellm, object_with_langchain):
        print(f"{ask.__name__}:", (await ask(url)).model_dump_json())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
