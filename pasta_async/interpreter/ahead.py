"""Joins sent ahead: while main waits at a sync, the backend prefills what is certain of its next context.

The written form up to the first chunk that is not done, and what that chunk has by now, can only become
longer. So it is sent as prefill-only requests (`DecodeRequest.max_tokens` 0), each an extension of the one
before, and main's request at the join finds it in the prefix cache. Nothing else depends on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from pasta_async.interpreter.machine import Machine
from pasta_async.interpreter.reading import Part
from pasta_async.interpreter.width import Share
from pasta_async.observers import AnswerObserver, observed_request
from pasta_async.protocol import Backend, DecodeRequest, FinishReason
from pasta_async.results import RequestRecord

MIN_TOKENS = 32
"""Tokens of chunks that a further request has to bring; fewer cost less at the join than a request."""


class AheadSender:
    """Sends the join ahead while main waits, if its model asks for that: at most one request at a time.

    A request that fails is no error of the answer: no further one is sent then. The observer is told of
    requests as of main's. `context` makes token ids of the prompt and these parts; `group` owns the tasks.
    """

    def __init__(
        self,
        backend: Backend,
        machine: Machine,
        *,
        observer: AnswerObserver,
        context: Callable[[Sequence[Part]], Awaitable[tuple[int, ...]]],
        share: Share,
        group: asyncio.TaskGroup,
    ) -> None:
        self._backend, self._machine, self._observer = backend, machine, observer
        self._context, self._share, self._group = context, share, group
        self._wanted = machine.info.prefill_ahead and machine.start.parallel != "never"
        self.waiting: bool = False
        """Whether main waits, and the backend wants to know what for."""
        self._done = 0  # chunks of the round, from the first on, that are done
        self._done_tokens: int | None = None  # of these, but for the first's; None: there is no first yet
        self._sent = 0  # tokens of chunks that were sent since main waits
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Main waits at a sync."""
        self.waiting = self._wanted
        self._done, self._done_tokens, self._sent = 0, None, 0
        self.advance()

    def advance(self) -> None:
        """Chunks may have grown: send the next request, if it is worth one and none is under way."""
        busy = self._task and not self._task.done()
        if self.waiting and not busy and self._certain_tokens() >= self._sent + MIN_TOKENS:
            self._task = self._group.create_task(self._send_all(), name="pasta prefill ahead")

    async def end(self) -> None:
        """Main waits no longer. Returns when no request is left; what it computed stays in the prefix cache.

        Cancelling it leaves the request to the task group.
        """
        self.waiting = False
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _certain_tokens(self) -> int:
        """Tokens of chunks in what is certain, those of the first aside, which its own thread cached."""
        chunks = self._machine.answer.budget.round
        while self._done < len(chunks) and (chunk := chunks[self._done]).state == "done":
            self._done += 1
            if not chunk.superseded:
                self._done_tokens = 0 if self._done_tokens is None else self._done_tokens + chunk.kept
        if self._done_tokens is None or self._done == len(chunks):
            return 0
        return self._done_tokens + chunks[self._done].recorded.settled

    async def _send_all(self) -> None:
        try:
            while (tokens := self._certain_tokens()) >= self._sent + MIN_TOKENS:
                self._sent = tokens
                if not await self._share.spare():
                    continue  # the next request brings these tokens too
                ids = await self._context(self._machine.certain())
                if len(ids) >= self._machine.info.context_length:
                    self._wanted = self.waiting = False
                    break
                await self._exchange(ids)
        except Exception:
            self._wanted = self.waiting = False

    async def _exchange(self, ids: tuple[int, ...]) -> None:
        start = self._machine.start
        cached: int | None = None

        async def prefill(request: DecodeRequest) -> FinishReason:
            nonlocal cached
            finish_reason: FinishReason = "abort"
            async with aclosing(self._backend.decode(request)) as pieces:
                async for piece in pieces:
                    cached = piece.cached_tokens if cached is None else cached
                    finish_reason = piece.finish_reason or finish_reason
            return finish_reason

        def record(finish_reason: FinishReason) -> RequestRecord:
            found = RequestRecord(
                prompt_tokens=len(ids), cached_tokens=cached, completion_tokens=0, finish_reason=finish_reason
            )
            self._machine.answer.prefills.append(found)
            return found

        request = DecodeRequest(start.answer, 0, ids, max_tokens=0, sampling=start.sampling)
        await observed_request(self._observer, request, prefill, record)
