"""One request between the engine's thread and its reader: pieces in order, never more than a few waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from pasta_async.backends.tokenization import Detokenizer
from pasta_async.protocol import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.backends.local.engine import Output
    from pasta_async.backends.local.scheduler import Job
    from pasta_async.backends.tokenization import TextCodec
    from pasta_async.protocol import DecodeRequest, FinishReason

__all__ = ["Stream", "Writer"]

_MOST_WAITING = 32


class Writer:
    """Turns a job's tokens into pieces, by the rules of `Piece`.

    Args:
        request: What was asked for.
        codec: For the text.
    """

    def __init__(self, request: DecodeRequest, codec: TextCodec) -> None:
        self._codec, self._request = codec, request
        self._text = Detokenizer(codec)
        self._tags, self._ends = frozenset(codec.tags or ()), frozenset(codec.end_ids)
        self._window = max(map(len, request.stop_text), default=1) - 1
        self._tail = ""  # of the text, as much as may begin a stop text
        self._held: list[Output] = []
        self._held_text = ""

    def write(self, output: Output) -> list[Piece]:
        """The pieces that this token makes ready; the last with a `finish_reason` if the request ends."""
        token = output.token
        if token in self._ends or token in self._tags:
            text = "" if token in self._ends else self._codec.detokenize([token])
            finish_reason = output.finish_reason or self._stop(text)
            return [
                *self._drain(None, complete=True),
                Piece((token,), text, finish_reason, logprobs=(output.logprob,)),
            ]
        text = self._text.add(token)
        finish_reason = output.finish_reason or self._stop(text)
        self._held.append(output)
        self._held_text += text
        return (
            self._drain(finish_reason, complete=finish_reason is not None)
            if finish_reason or self._request.stream
            else []
        )

    def _drain(self, finish_reason: FinishReason | None, *, complete: bool) -> list[Piece]:
        """What is held, as one piece; `complete` brings out an unfinished character too."""
        text = self._held_text + (self._text.flush() if complete else "")
        held, self._held, self._held_text = self._held, [], ""
        if not held and not text:
            return []
        return [
            Piece(tuple(o.token for o in held), text, finish_reason, logprobs=tuple(o.logprob for o in held))
        ]

    def _stop(self, text: str) -> FinishReason | None:
        recent = self._tail + text
        self._tail = recent[len(recent) - self._window :] if self._window else ""
        return "stop" if any(stop in recent for stop in self._request.stop_text) else None


class Stream:
    """A job and its reader's buffer.

    Belongs to the running event loop; `write` runs in the engine's thread.

    Args:
        job: In the engine.
        writer: Makes its pieces.
    """

    def __init__(self, job: Job, writer: Writer) -> None:
        self.job = job
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.ended: asyncio.Event = asyncio.Event()
        """Whether the engine is done with the job."""
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
        pieces = self._writer.write(output)
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
