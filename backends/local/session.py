"""The engine as one event loop sees it: a thread that steps while requests are open, a task that minds it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from pasta_async.backends.local.engine import Engine
    from pasta_async.backends.local.stream import Stream
    from pasta_async.protocol import Piece

    Delivery = Sequence[tuple[Stream, Sequence[Piece]]]

__all__ = ["Session", "Stepper"]


class Stepper:
    """Runs the engine's steps. `submit` may be called from any thread, `run` in the engine's only.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: deque[Callable[[], None]] = deque()
        self._streams: dict[int, Stream] = {}  # by the id of the job

    def submit(self, command: Callable[[], None]) -> None:
        """Have a command run in the engine's thread, between two steps."""
        self._commands.append(command)

    def add(self, stream: Stream) -> None:
        """Start a stream's job (a command)."""
        self._streams[id(stream.job)] = stream
        self._engine.add(stream.job)

    def remove(self, stream: Stream) -> None:
        """Let a stream's job go, if it has not ended (a command)."""
        if self._streams.pop(id(stream.job), None):
            self._engine.remove(stream.job)

    def reset(self) -> None:
        """Drop everything (a command)."""
        self._streams.clear()
        self._engine.reset()

    def drop_abandoned(self) -> None:
        """Let the streams of closed loops go (a command)."""
        for stream in [stream for stream in self._streams.values() if stream.loop.is_closed()]:
            self.remove(stream)

    def run(self) -> None:
        """Step until no job can move: all have ended, or wait for their readers."""
        while True:
            while self._commands:
                self._commands.popleft()()
            for stream in self._streams.values():
                stream.job.paused = stream.full
            outputs = self._engine.step()
            if outputs is not None:
                ready = [
                    (stream := self._streams[id(output.job)], stream.write(output)) for output in outputs
                ]
                for stream, pieces in ready:
                    self._end(stream, pieces)
                self._deliver([(stream, pieces) for stream, pieces in ready if pieces])
            elif not self._commands:
                return

    def _end(self, stream: Stream, pieces: Sequence[Piece]) -> None:
        if pieces and pieces[-1].finish_reason:
            del self._streams[id(stream.job)]
            if stream.job.node is not None:  # the text ended it, not the engine
                self._engine.remove(stream.job)

    def _deliver(self, ready: Delivery) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Sequence[Piece]]]] = {}
        for stream, pieces in ready:
            by_loop.setdefault(stream.loop, []).append((stream, pieces))
        for loop, batch in by_loop.items():
            if not _tell(loop, _post, batch):
                self.drop_abandoned()


class Session:
    """The open streams of one event loop, and the task that exists while there are any.

    Args:
        stepper: Steps the engine.
        executor: One thread, the engine's.
    """

    def __init__(self, stepper: Stepper, executor: Executor) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._stepper, self._executor = stepper, executor
        self._open: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()  # there may be something to step
        self._settled = asyncio.Event()  # the task has ended, or is needed again

    @property
    def busy(self) -> bool:
        """Whether streams are open on a loop that is still alive."""
        return bool(self._open) and not self.loop.is_closed()

    @property
    def abandoned(self) -> bool:
        """Whether the loop was closed while streams were open."""
        return bool(self._open) and self.loop.is_closed()

    def open(self, stream: Stream) -> None:
        """Start a stream."""
        self._open.add(stream)
        self._settled.set()
        self._command(lambda: self._stepper.add(stream))

    def resume(self) -> None:
        """A reader has made room: its job may move again."""
        self._wake.set()

    async def close(self, stream: Stream) -> None:
        """End a stream. When this returns its slots are free, and with the last one the task has ended.

        A cancellation is raised only after that.
        """
        if not stream.ended.is_set():
            self._command(lambda: self._remove(stream))
        cancelled = await _wait(stream.ended)
        self._open.discard(stream)
        if not self._open:
            cancelled = await self._finish() or cancelled
        if cancelled:
            raise cancelled

    async def fail(self, error: BaseException) -> None:
        """End every stream with an error. A cancellation is raised only after the task has ended."""
        self._fail(error)
        if cancelled := await self._finish():
            raise cancelled

    def _fail(self, error: BaseException) -> None:
        for stream in self._open:
            if not stream.ended.is_set():
                self._stepper.submit(lambda stream=stream: self._stepper.remove(stream))
                stream.fail(error)
        self._open.clear()

    async def _finish(self) -> asyncio.CancelledError | None:
        """Wait until the task has ended, or another stream needs it."""
        if self._task is None or self._task.done():
            return None
        self._settled.clear()
        self._wake.set()
        return await _wait(self._settled)

    def _command(self, command: Callable[[], None]) -> None:
        self._stepper.submit(command)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._drive(), name="pasta_async local engine")

    def _remove(self, stream: Stream) -> None:
        self._stepper.remove(stream)
        _tell(self.loop, stream.ended.set)

    async def _drive(self) -> None:
        """Keep the engine's thread stepping while streams are open."""
        try:
            while self._open:
                self._wake.clear()
                await self.loop.run_in_executor(self._executor, self._stepper.run)
                if self._open:
                    await self._wake.wait()
        except asyncio.CancelledError:
            self._fail(BackendError("the embedded engine's task was cancelled"))
            raise
        except Exception as error:
            await self.loop.run_in_executor(self._executor, self._stepper.reset)
            failure = BackendError(f"the embedded engine failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self._settled.set()


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> bool:
    """Have a loop call something, from the engine's thread; False if it was closed meanwhile."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        return False
    return True


def _post(ready: Delivery) -> None:
    for stream, pieces in ready:
        stream.post(pieces)


async def _wait(event: asyncio.Event) -> asyncio.CancelledError | None:
    """Wait for an event that comes soon whatever happens; return a cancellation that came meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
