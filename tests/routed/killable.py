"""Scripted backends that can be killed and come back, and a client over several of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pasta_async import DecodeRequest, ModelInfo, Piece
from pasta_async.backends.routed import RoutedBackend
from pasta_async.errors import BackendConnectError, BackendTransportError
from pasta_async.protocol import Message
from pasta_async.testing import ScriptedBackend, VirtualClock, WordTokenizer


class KillableBackend(ScriptedBackend):
    """A scripted backend that can be killed, and revived.

    Attributes:
        alive: Whether it answers.
        checks: How often it was asked what it serves.
        before_check: Awaited at each of these, to be late or to fail.
        vocab_size: What it says of its model, where that is not so.
    """

    def __init__(self, name: str, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address = name
        self.alive: bool = True
        self.checks: int = 0
        self.before_check: Callable[[], Awaitable[None]] | None = None
        self.vocab_size: int | None = None

    async def check(self) -> ModelInfo:
        self.checks += 1
        if self.before_check:
            await self.before_check()
        return await self.connect()

    async def connect(self) -> ModelInfo:
        self._check_alive()
        info = await super().connect()
        return replace(info, vocab_size=self.vocab_size or info.vocab_size)

    async def encode(self, text: str) -> list[int]:
        self._check_alive()
        return await super().encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        self._check_alive()
        return await super().encode_chat(messages, template_kwargs)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        self._check_alive()
        async with aclosing(super().decode(request)) as pieces:
            async for piece in pieces:
                if not self.alive:
                    raise BackendTransportError(f"the connection to {self.address} broke off")
                yield piece

    def _check_alive(self) -> None:
        if not self.alive:
            raise BackendConnectError(f"nothing answers at {self.address}")


def several(
    script: Any, count: int = 2, **options: Any
) -> tuple[RoutedBackend, list[KillableBackend], VirtualClock]:
    """Some backends with one script, on one clock, and what spreads answers over them."""
    clock, tokenizer = VirtualClock(), WordTokenizer()
    options = {"clock": clock, "tokenizer": tokenizer, "latency": 0.1, **options}
    members = [KillableBackend(f"m{k}", script, **options) for k in range(count)]
    return RoutedBackend({member.address: member for member in members}, clock=clock), members, clock


def answers_at(member: KillableBackend) -> set[str]:
    """The answers of which a member decoded something."""
    return {request.answer for request in member.requests}
