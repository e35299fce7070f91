"""What can go wrong with a request and its reply, and replies that are spoilt by it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "refused",
    "dropped",
    "status 400",
    "status 401",
    "status 404",
    "status 429",
    "status 500",
    "status 502",
    "status 503",
    "status 504",
    "html",
    "reset",
    "half a body",
    "cut",
    "stalled",
    "slow",
    "garbage",
    "duplicated",
    "wrong id",
]

Path = Literal["/generate", "/tokenize", "/v1/loads", "/abort_request"]

GARBAGE = b"\x00\xff]}\n\ndata: {\xfe\n\n"

BEFORE_A_TOKEN, BEHIND_A_TOKEN = 300, 1000
"""Bytes of a stream of `/generate`: fewer than its first event has, and more."""

SLOW_SECONDS = 0.05
"""Between two bytes of a reply that is slow."""


@dataclass
class Fault:
    """What goes wrong with a request.

    Attributes:
        kind: How. `refused`: nothing listens where it is sent. `dropped`: it is sent, and the connection is
            reset before a byte of a reply.
        request: Which of the requests that come, from 0.
        at: Bytes of its reply that come through before.
        path: Of the request.
        lasting: Whether it stays: from then on every such request of the answer fails in this way.
        victim: Number of the answer whose prompt must be encoded by it, or which is broken off
            (`/abort_request`).
        answer: The id of the answer that it struck.
        strikes: Set as soon as it strikes; a reply may be shorter, and requests fewer.
    """

    kind: Kind
    request: int
    at: int
    path: Path = "/generate"
    lasting: bool = False
    victim: int = 0
    answer: str | None = None
    strikes: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def struck(self) -> bool:
        """Whether it did."""
        return self.strikes.is_set()

    @property
    def replies(self) -> bool:
        """Whether a part of the server's reply may stand before it."""
        return not self.kind.startswith(("refused", "dropped", "status", "html"))

    @property
    def behind_a_token(self) -> bool:
        """Whether it strikes a stream of which a token came."""
        return self.replies and self.path == "/generate" and self.at > BEHIND_A_TOKEN

    def __str__(self) -> str:
        """What is counted."""
        return f"{self.path} {self.kind}{', lasting' if self.lasting else ''}"


async def spoilt(chunks: AsyncIterator[bytes], fault: Fault | None) -> AsyncGenerator[bytes | None, None]:
    """The stream as it is handed on; None: the connection ends here."""
    done = 0
    async for chunk in chunks:
        if fault is None or done + len(chunk) <= fault.at:
            yield chunk
            done += len(chunk)
            continue
        if before := chunk[: fault.at - done]:
            yield before
        async for part in _from_there(chunk[len(before) :], chunks, fault):
            yield part
        return
    if fault and done == fault.at == 0:  # a reply without a byte
        async for part in _from_there(b"", chunks, fault):
            yield part


async def _from_there(
    rest: bytes, chunks: AsyncIterator[bytes], fault: Fault
) -> AsyncGenerator[bytes | None, None]:
    if fault.kind not in ("duplicated", "wrong id"):
        fault.strikes.set()
    match fault.kind:
        case "reset" | "half a body":
            yield None
            return
        case "cut":
            return
        case "stalled":
            await asyncio.Event().wait()
        case "garbage":
            yield GARBAGE
        case "slow":
            async for byte in _single(rest, chunks):
                yield byte
                await asyncio.sleep(SLOW_SECONDS)
            return
        case _:
            async for part in _edited(rest, chunks, fault):
                yield part
            return
    yield rest
    async for chunk in chunks:
        yield chunk


async def _single(rest: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    for at in range(len(rest)):
        yield rest[at : at + 1]
    async for chunk in chunks:
        for at in range(len(chunk)):
            yield chunk[at : at + 1]


async def _edited(rest: bytes, chunks: AsyncIterator[bytes], fault: Fault) -> AsyncGenerator[bytes, None]:
    """The next event that is whole comes twice, or is another request's."""
    while rest.count(b"\n\n") < 2 and (more := await anext(chunks, None)) is not None:
        rest += more
    first, _, behind = rest.partition(b"\n\n")
    event, _, last = behind.partition(b"\n\n")
    if b'"output_ids"' not in event:
        pass  # the last one was before
    elif fault.kind == "duplicated":
        fault.strikes.set()
        event += b"\n\n" + event
    else:
        fault.strikes.set()
        event = re.sub(rb'"id":\s*"pasta-', b'"id":"pesto-', event)
    yield first + b"\n\n" + (event + b"\n\n" + last if event else b"")
    async for chunk in chunks:
        yield chunk
