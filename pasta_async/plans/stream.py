"""A plan while it is filled: the stream that users read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic

from pasta_async.observers import Observation
from pasta_async.plans.events import EmitFill, FillDone, Filled, FillEvent, T
from pasta_async.plans.run import PlanRun
from pasta_async.streaming import ResultStream

FillWork = Callable[["FillStream[Any] | None", EmitFill | None], Coroutine[Any, Any, Filled[T]]]
"""Fills a plan, and gives the stream its run."""


class FillStream(ResultStream[FillEvent, Filled[T]], Generic[T]):
    """The events of one plan. Made by `Client.fill_stream`.

    Attributes:
        run: The run; None until the prompt is encoded.
    """

    def __init__(self, work: FillWork[T], observation: Observation) -> None:
        async def run(emit: EmitFill) -> Filled[T]:
            filled = await work(self, emit)
            if wait := emit([FillDone(filled)]):
                await wait
            return filled

        super().__init__(run, observation)
        self.run: PlanRun | None = None

    def snapshot(self) -> dict[str, Any]:
        """The values so far, by path. A string that is being written has its beginning here.

        Fields that are not begun are left out, which tells them from null.
        """
        return self.run.snapshot() if self.run else {}

    @property
    def text(self) -> str:
        """The text in order, up to the first part that is not written yet: a beginning of the final text."""
        return self.run.document() if self.run else ""

    async def json_deltas(self) -> AsyncIterator[str]:
        """The text in order, piece by piece: the pieces so far are always a beginning of the final JSON."""
        written = 0
        async for _ in self:
            if delta := self.text[written:]:
                written += len(delta)
                yield delta
