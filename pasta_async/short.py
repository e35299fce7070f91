"""`generate` and `stream`: one answer on a client of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pasta_async.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from pasta_async.interpreter import Fork
    from pasta_async.limits import Limits
    from pasta_async.prompting import Prompt
    from pasta_async.protocol import Backend
    from pasta_async.results import Generation
    from pasta_async.sampling import Sampling
    from pasta_async.streaming import AnswerStream

__all__ = ["generate", "stream"]


async def generate(
    prompt: Prompt,
    *,
    backend: str | Sequence[str] | Backend | None = None,
    api_key: str | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    max_tokens: int | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    prompted: bool | None = None,
    baseline: bool = False,
    parallel: bool = True,
    fork: Fork = "stream",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    whole_chunks: bool = False,
) -> Generation:
    """Answer one prompt on a client of its own; for more than one, keep a `Client`.

    `backend` and `api_key` (None: `PASTA_API_KEY`) are for the client, the others for
    `Client.generate`, which describes them, the errors, and what cancelling does.
    """
    async with _short_lived(backend, api_key) as client:
        return await client.generate(
            prompt,
            sampling=sampling,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            stop=stop,
            max_tokens=max_tokens,
            limits=limits,
            prompted=prompted,
            baseline=baseline,
            parallel=parallel,
            fork=fork,
            chat_template_kwargs=chat_template_kwargs,
            whole_chunks=whole_chunks,
        )


@asynccontextmanager
async def stream(
    prompt: Prompt,
    *,
    backend: str | Sequence[str] | Backend | None = None,
    api_key: str | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    max_tokens: int | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    prompted: bool | None = None,
    baseline: bool = False,
    parallel: bool = True,
    fork: Fork = "stream",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    whole_chunks: bool = False,
) -> AsyncGenerator[AnswerStream]:
    """Watch one answer on a client of its own: `async with pasta_async.stream(...) as s`.

    What may be passed is described at `generate`. Leaving the block ends the answer with all its requests.
    """
    async with _short_lived(backend, api_key) as client:
        answer = client.stream(
            prompt,
            sampling=sampling,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            stop=stop,
            max_tokens=max_tokens,
            limits=limits,
            prompted=prompted,
            baseline=baseline,
            parallel=parallel,
            fork=fork,
            chat_template_kwargs=chat_template_kwargs,
            whole_chunks=whole_chunks,
        )
        async with answer:
            yield answer


def _short_lived(backend: str | Sequence[str] | Backend | None, api_key: str | None) -> Client:
    return Client(backend) if api_key is None else Client(backend, api_key=api_key)
