"""What one writes by hand, without a library for this: `asyncio.gather` over chat completions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pasta_async.errors import BackendError
from pasta_async.evals.methods.parts import outline, rounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx

    from pasta_async.evals.methods.parts import Part
    from pasta_async.evals.methods.track import Case, Engine, Track

__all__ = ["prepare_by_hand"]


async def prepare_by_hand(engine: Engine, case: Case) -> Callable[[Track], Awaitable[int]]:
    """Ask for a list of parts, then for all of them at once, over the engine's OpenAI endpoint.

    The instruction comes first in each prompt, as it mostly does, so that the prompts share no prefix to
    speak of. A later round sees the text so far. Replies come whole.
    """
    asked = [
        [(prompt, await engine.encode(text) + engine.end) for prompt, text in one]
        for one in _questions(case.prompt, rounds(case.document))
    ]
    bodies = [[await engine.endpoint.body(prompt, target) for prompt, target in one] for one in asked]
    http = await engine.endpoint.http()

    async def work(track: Track) -> int:
        for one in bodies:
            replies = await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for body in one))
            track.token_came()
            for reply in replies:
                _count(track, reply)
        return sum(max(len(target) for _, target in one) for one in asked)

    return work


def _questions(question: str, found: list[list[Part]]) -> list[list[tuple[str, str]]]:
    """Prompts and what is to be answered, in rounds."""
    parts = [part for one in found for part in one]
    if len(parts) == 1:
        return [[(question, parts[0].text)]]
    asked = [[(f"List the parts that an answer to this should have.\n\n{question}", outline(parts))]]
    text = ""
    for one in found:
        asked.append([(_part_of(question, part.topic, text), part.text) for part in one])
        text += "".join(part.text for part in one)
    return asked


def _part_of(question: str, topic: str, text: str) -> str:
    wanted = f"Write only the part about {topic} of an answer to this." if topic else "Finish this answer."
    return f"{wanted}\n\n{question}" + (f"\n\nThe answer so far:\n{text}" if text else "")


def _count(track: Track, reply: httpx.Response) -> None:
    if reply.is_error:
        raise BackendError(f"{reply.url} answered {reply.status_code}: {reply.text[:300]}")
    usage = reply.json()["usage"]
    if (details := usage.get("prompt_tokens_details")) is None:
        raise BackendError(f"{reply.url} does not tell what was cached: start it with --enable-cache-report")
    cached: int = details["cached_tokens"]
    track.requests += 1
    track.count(tokens=usage["completion_tokens"], cached=cached, prefilled=usage["prompt_tokens"] - cached)
