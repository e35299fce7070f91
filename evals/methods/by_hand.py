"""What one writes without a library: chat completions of an SGLang server, gathered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from pasta_async.errors import BackendError
from pasta_async.evals.forcing import FORCE
from pasta_async.evals.methods.track import outline, rounds

if TYPE_CHECKING:
    import httpx

    from pasta_async.evals.methods.track import Case, Engine, Ids, Track, Work

How = Literal["planned", "split", "whole"]


async def by_hand(engine: Engine, case: Case, *, how: How = "planned") -> Work:
    """What one writes without a library: `asyncio.gather` over chat completions, whose replies come whole.

    `planned`: a list of parts first, then each of them; `split`: someone knew the parts; `whole`: all of the
    answer in one reply. The question comes first in each prompt, so that prompts share it as their prefix. A
    later round sees the text so far.
    """
    asked = [
        [_completion(prompt, await engine.encode(text) + engine.end) for prompt, text in one]
        for one in _questions(case, how)
    ]

    async def work(track: Track) -> int:
        for one in asked:
            posts = (engine.http.post("/v1/chat/completions", json=body) for body in one)
            replies = await asyncio.gather(*posts)
            track.note_token()
            for reply in replies:
                _count(track, reply)
        return sum(max(len(body["custom_params"]["forced"]) for body in one) for one in asked)

    return work


def _completion(prompt: str, target: Ids) -> dict[str, Any]:
    """A chat completion that asks for `prompt`, and is made to answer `target`."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "chat_template_kwargs": {"pasta": False},
        "temperature": 0,
        "max_tokens": len(target) + 1,  # an engine may look at the limit before it looks at the stop token
        "custom_logit_processor": FORCE,
        "custom_params": {"forced": target},
    }


def _questions(case: Case, how: How) -> list[list[tuple[str, str]]]:
    """Prompts and what is to be answered, in rounds."""
    question, found = case.prompt, rounds(case.document)
    parts = [part for one in found for part in one]
    if how == "whole" or len(parts) == 1:
        return [[(question, case.document.text)]]
    plan = (f"{question}\n\nList the parts that an answer to this should have.", outline(parts))
    asked, text = [[plan]] if how == "planned" else [], ""
    for one in found:
        asked.append([(_part_of(question, part.topic, text), part.text) for part in one])
        text += "".join(part.text for part in one)
    return asked


def _part_of(question: str, topic: str, text: str) -> str:
    wanted = f"Write only the part about {topic} of an answer to this." if topic else "Finish this answer."
    return f"{question}\n\n{wanted}" + (f"\n\nThe answer so far:\n{text}" if text else "")


def _count(track: Track, reply: httpx.Response) -> None:
    if reply.is_error:
        raise BackendError(f"{reply.url} answered {reply.status_code}: {reply.text[:300]}")
    usage = reply.json()["usage"]
    if (details := usage.get("prompt_tokens_details")) is None:
        raise BackendError(f"{reply.url} does not tell what was cached: start it with --enable-cache-report")
    cached: int = details["cached_tokens"]
    track.count(tokens=usage["completion_tokens"], cached=cached, prefilled=usage["prompt_tokens"] - cached)
