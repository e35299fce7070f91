"""LiteLLM answers with PASTA in this process, through its hook for custom providers: no server between.

Whatever calls LiteLLM (an agent framework, its proxy) then has the model `pasta/local`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import asks the network for prices

import litellm
from litellm.llms.custom_llm import CustomLLM
from litellm.types.utils import (  # pyright: ignore[reportMissingTypeStubs]
    Choices,
    GenericStreamingChunk,
    Message,
    ModelResponse,
    Usage,
)

import pasta_async

PROMPT = "Compare tea and coffee: origin, taste, health."


class PastaProvider(CustomLLM):
    """Answers of one client. LiteLLM passes more than is used here; all of it comes by name."""

    def __init__(self, client: pasta_async.Client) -> None:
        super().__init__()
        self.client = client

    async def acompletion(self, *_: Any, **call: Any) -> ModelResponse:
        """A whole answer."""
        answer = await self.client.generate(call["messages"], sampling=_sampling(call["optional_params"]))
        message = Message(role="assistant", content=answer.text)
        reply = ModelResponse(
            model=call["model"], choices=[Choices(finish_reason=answer.finish_reason, message=message)]
        )
        setattr(reply, "usage", Usage(**_usage(answer)))  # noqa: B010 - a field it has without declaring it
        return reply

    async def astreaming(  # pyright: ignore[reportIncompatibleMethodOverride] - its base is no generator
        self, *_: Any, **call: Any
    ) -> AsyncGenerator[GenericStreamingChunk, None]:
        """The text as it is decoded; whoever stops reading ends the answer with all its threads."""
        sampling = _sampling(call["optional_params"])
        async with self.client.stream(call["messages"], sampling=sampling) as answer:
            async for text in answer.text_deltas():
                yield GenericStreamingChunk(text=text, is_finished=False, finish_reason="", usage=None)
            done = await answer.result()
        yield GenericStreamingChunk(
            text="", is_finished=True, finish_reason=done.finish_reason, usage=_usage(done)
        )


def _sampling(options: dict[str, Any]) -> pasta_async.Sampling:
    """LiteLLM's options as ours: only `max_completion_tokens` has another name. Unknown ones are refused."""
    values = {name: value for name, value in options.items() if name != "stream"}
    if "max_completion_tokens" in values:
        values["max_tokens"] = values.pop("max_completion_tokens")
    return pasta_async.Sampling(**values)


def _usage(answer: pasta_async.Generation) -> Any:
    prompt, completion = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def main() -> None:
    """Register the provider, and ask LiteLLM for an answer and for a stream."""
    llm: Any = litellm  # its types are not complete
    messages = [{"role": "user", "content": PROMPT}]
    async with pasta_async.Client() as client:
        litellm.custom_provider_map = [{"provider": "pasta", "custom_handler": PastaProvider(client)}]
        options = {"model": "pasta/local", "messages": messages, "temperature": 0, "max_tokens": 200}
        reply = await llm.acompletion(**options)
        print(reply.choices[0].message.content)
        print(reply.usage.completion_tokens, "tokens")
        async for chunk in await llm.acompletion(**options, stream=True):
            print(chunk.choices[0].delta.content or "", end="")
        print()


if __name__ == "__main__":
    asyncio.run(main())
