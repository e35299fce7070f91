"""The engine as one event loop sees it: requests, their readers' buffers, the thread that steps.

`Stream` is one request between the engine's thread and its reader, `EngineLoop` steps the engine in its
thread, `Session` keeps that thread at work while streams of one event loop are open.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Any

from pasta_async.backends.local.engine import Engine, Output
from pasta_async.backends.local.scheduler import Job
from pasta_async.backends.tokenization import Detokenizer, TextCodec
from pasta_async.clock import wait_out
from pasta_async.errors import BackendError
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.results import FinishReason

Delivery = list[tuple["Stream", Sequence[Piece]]]

_MOST_WAITING = 32  # pieces in a reader's buffer before its job pauses


class PieceWriter:
    """Turns a job's tokens into pieces, by the rules of `Piece`."""

    def __init__(self, request: DecodeRequest, codec: TextCodec) -> None:
        self._codec, self._request = codec, request
        self._text = Detokenizer(codec)
        self._tags, self._ends = frozenset(codec.tags or ()), frozenset(codec.end_ids)
        self._held: list[int] = []
        self._held_text = ""

    def write(self, token: int, finish_reason: FinishReason | None) -> list[Piece]:
        """The pieces that this token makes ready; the last with a `finish_reason` if the request ends."""
        if token in self._ends or token in self._tags:
            text = "" if token in self._ends else self._codec.detokenize([token])
            return [*self._drain(None, complete=True), Piece((token,), text, finish_reason)]
        text = self._text.add(token)
        self._held.append(token)
        self._held_text += text
        if not finish_reason and not self._request.stream:
            return []
        return self._drain(finish_reason, complete=finish_reason is not None)

    def _drain(self, finish_reason: FinishReason | None, *, complete: bool) -> list[Piece]:
        """What is held, as one piece; `complete` brings out an unfinished character too."""
        text = self._held_text + (self._text.flush() if complete else "")
        held, self._held, self._held_text = self._held, [], ""
        if not held and not text:
            return []
        return [Piece(tuple(held), text, finish_reason)]


class Stream:
    """A job and its reader's buffer, of the running event loop; `write` runs in the engine's thread."""

    def __init__(self, job: Job, writer: PieceWriter) -> None:
        self.job = job
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.ended: asyncio.Event = asyncio.Event()  # the engine is done with the job
        self._writer = writer
        self._pieces: deque[Piece] = deque()
        self._news = asyncio.Event()
        self._error: BaseException | None = None
        self._written = self._read = 0

    @property
    def full(self) -> bool:
        """Whether the reader is so far behind that the job should pause."""
        return self._written - self._read >= _MOST_WAITING

    @property
    def empty(self) -> bool:
        """Whether the reader has read all that was handed to it."""
        return not self._pieces

    def write(self, output: Output) -> list[Piece]:
        """The pieces that a token makes ready, with the usage on the first and on the last."""
        if output.token is None:
            pieces = [Piece((), "", "length")]
        else:
            pieces = self._writer.write(output.token, output.finish_reason)
        if pieces and (not self._written or pieces[-1].finish_reason):
            usage = {"prompt_tokens": self.job.prompt, "cached_tokens": self.job.cached}
            pieces[-1] = pieces[-1]._replace(**usage)
        self._written += len(pieces)
        return pieces

    def post(self, pieces: Sequence[Piece]) -> None:
        """Hand pieces to the reader."""
        self._pieces.extend(pieces)
        self._news.set()
        if pieces[-1].finish_reason:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        """End the stream; its reader gets the error after what is in the buffer."""
        self._error = error
        self.ended.set()
        self._news.set()

    async def read(self) -> Piece:
        """The next piece. Cancelling it loses nothing."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        self._read += 1
        return self._pieces.popleft()


class EngineLoop:
    """Runs the engine's steps. `submit` may be called from any thread, `run` in the engine's only."""

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
            began = perf_counter()
            outputs = self._engine.step()
            if outputs is not None:
                self._hand_out(outputs)
                requests, prefilled = self._engine.latest
                if requests and not prefilled:
                    seconds = perf_counter() - began
                    self._engine.step_times.add(1, requests, seconds, requests**2, requests * seconds)
            elif not self._commands:
                return

    def _hand_out(self, outputs: Sequence[Output]) -> None:
        ready: defaultdict[asyncio.AbstractEventLoop, Delivery] = defaultdict(list)
        for output in outputs:
            stream = self._streams[id(output.job)]
            if output.error:
                del self._streams[id(output.job)]
                _call_soon(stream.loop, stream.fail, output.error)
            elif pieces := stream.write(output):
                ready[stream.loop].append((stream, pieces))
                self._end(stream, pieces)
        for loop, batch in ready.items():
            if not _call_soon(loop, _post_all, batch):
                self.drop_abandoned()

    def _end(self, stream: Stream, pieces: Sequence[Piece]) -> None:
        if pieces[-1].finish_reason:
            del self._streams[id(stream.job)]
            if stream.job.node is not None:  # the text ended it, not the engine
                self._engine.remove(stream.job)


class Session:
    """The open streams of one event loop, and the task that exists while there are any.

    The task has `engine_loop` run in the one thread of `executor`.
    """

    def __init__(self, engine_loop: EngineLoop, executor: Executor) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._engine_loop, self._executor = engine_loop, executor
        self._open: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()  # there may be something to step
        self._settled = asyncio.Event()  # the task has ended, or is needed again

    @property
    def busy(self) -> bool:
        """Whether streams are open on a loop that is still alive."""
        return bool(self._open) and not self.loop.is_closed()

    def open(self, stream: Stream) -> None:
        """Start a stream."""
        self._open.add(stream)
        self._settled.set()
        self._command(lambda: self._engine_loop.add(stream))

    def resume(self) -> None:
        """A reader has made room: its job may move again."""
        self._wake.set()

    async def close(self, stream: Stream) -> None:
        """End a stream. When this returns its slots are free, and with the last one the task has ended.

        A cancellation is raised only after that.
        """
        if not stream.ended.is_set():
            self._command(lambda: self._remove(stream))
        cancelled = await wait_out(stream.ended.is_set, stream.ended.wait)
        self._open.discard(stream)
        if not self._open:
            cancelled = await self._finish() or cancelled
        if cancelled:
            raise cancelled

    async def fail(self, error: BaseException) -> None:
        """End every stream with an error. A cancellation is raised only after the task has ended.

        Called on another event loop it has the session's own do that, and does not wait.
        """
        if self.loop is not asyncio.get_running_loop():
            _call_soon(self.loop, self._fail, error)
            return
        self._fail(error)
        if cancelled := await self._finish():
            raise cancelled

    def _fail(self, error: BaseException) -> None:
        for stream in self._open:
            if not stream.ended.is_set():
                self._engine_loop.submit(lambda stream=stream: self._engine_loop.remove(stream))
                stream.fail(error)
        self._open.clear()

    async def _finish(self) -> asyncio.CancelledError | None:
        """Wait until the task has ended, or another stream needs it."""
        if self._task is None or self._task.done():
            return None
        self._settled.clear()
        self._wake.set()
        return await wait_out(self._settled.is_set, self._settled.wait)

    def _command(self, command: Callable[[], None]) -> None:
        self._engine_loop.submit(command)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._drive(), name="pasta_async local engine")

    def _remove(self, stream: Stream) -> None:
        self._engine_loop.remove(stream)
        _call_soon(self.loop, stream.ended.set)

    async def _drive(self) -> None:
        """Keep the engine's thread stepping while streams are open."""
        try:
            while self._open:
                self._wake.clear()
                await self.loop.run_in_executor(self._executor, self._engine_loop.run)
                if self._open:
                    await self._wake.wait()
        except asyncio.CancelledError:
            self._fail(BackendError("the embedded engine's task was cancelled"))
            raise
        except Exception as error:
            failure = BackendError(f"the embedded engine failed: {error!r}")
            failure.__cause__ = error
            try:
                await self.loop.run_in_executor(self._executor, self._engine_loop.reset)
            except Exception as again:  # no memory, say; the next request's step fails, and tries it again
                failure.add_note(f"its reset failed: {again!r}")
            finally:
                self._fail(failure)
        finally:
            self._settled.set()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> bool:
    """Have a loop call something, from another thread; False if it was closed meanwhile."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        return False
    return True


def _post_all(ready: Delivery) -> None:
    for stream, pieces in ready:
        stream.post(pieces)
