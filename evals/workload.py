"""The answer that measures the interpreter's own cost: chunks and text of a given size, and its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async import Client, Limits, Sampling
from pasta_async.testing import ScriptedBackend

if TYPE_CHECKING:
    from pasta_async.protocol import DecodeRequest

__all__ = ["UNLIMITED", "document", "limits", "requests"]

UNLIMITED = Sampling(max_tokens=10**9)
"""Answers of any length."""


def document(chunks: int, tokens: int) -> str:
    """An answer with some text, chunks of so many tokens (of a `WordTokenizer`), a sync, and text again."""
    body = "word" + " word" * (tokens - 1)
    promises = (f'<promise topic="part {k}" tokens="{tokens}"/><async>{body}</async>' for k in range(chunks))
    return f"Here it comes. {' '.join(promises)}<sync/> {body}"


def limits(threads: int) -> Limits:
    """Limits under which so many threads decode at once, in one answer or in many."""
    return Limits(max_threads=threads, client_threads=threads)


async def requests(backend: ScriptedBackend, text: str, prompt: str) -> list[DecodeRequest]:
    """The requests that the interpreter sends for an answer, in order, in the token ids of `backend`."""
    recorder = ScriptedBackend(text, tokenizer=backend.tokenizer)
    async with Client(recorder) as client:
        await client.generate(prompt, sampling=UNLIMITED)
    return recorder.requests
