"""A backend without a model: it plays written documents, for tests of code that uses pasta_async."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pasta_async.clock import REAL_CLOCK, Clock
from pasta_async.engine_load import EngineLoad
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.lang.checks import parse
from pasta_async.lang.document import Document
from pasta_async.lang.views import views
from pasta_async.protocol import DecodeRequest, Model, Piece, RequestEnd
from pasta_async.results import FinishReason
from pasta_async.testing.clock import VirtualClock
from pasta_async.testing.tokenizer import word_tokenizer
from pasta_async.tokenizer import Tokenizer

ScriptLike = str | Document
"""A document in written form, or parsed."""

ScriptSource = ScriptLike | Mapping[str, ScriptLike] | Callable[[str], ScriptLike]
"""One script for everything, or one for each prompt (the last user message's text)."""

Passage = tuple[int, ...]
"""Ids that a thread writes up to the next join; end-of-text is the last one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure in a thread's request."""

    thread: int
    """0 is the main thread, k the k-th promise."""
    after_tokens: int
    """Number of tokens after which the request fails; a request that ends sooner does not."""
    kind: Literal["fail", "stall"] = "fail"
    """`fail` raises `error`; `stall` sends nothing more."""
    times: int = 1
    """Number of the thread's requests that fail, one after another."""
    skip: int = 0
    """Number of the thread's requests before the first one that fails."""
    error: Exception | None = None
    """The error that `fail` raises; a `BackendError` unless given."""


@dataclass(slots=True, eq=False)
class Play:
    """The record of one request."""

    request: DecodeRequest
    started: float
    """The clock's time when it came in."""
    ids: list[int] = field(default_factory=list[int])
    """Ids that were sent so far."""
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    """None while it runs, `abort` if the client ended it early, `error` if it broke off."""
    ended: float | None = None


class ScriptedBackend:
    """Plays a written document as a model would decode it: same requests, same tokens, no model.

    Each request is answered with its passage of the document: thread k gets the k-th chunk, main gets its
    text up to the next `<sync/>`, then the text behind that. With latencies, tokens take time on a clock:
    unless one is given that is a `VirtualClock`, which the attribute `clock` has. All others that wait must
    use the same one (``Client(backend, clock=backend.clock)``).
    """

    def __init__(
        self,
        script: ScriptSource,
        *,
        tokenizer: Tokenizer | None = None,
        trained: bool = True,
        clock: Clock | None = None,
        latency: float = 0.0,
        thread_latency: Mapping[int, float] | None = None,
        faults: Sequence[Fault] = (),
        piece: int = 1,
        honours_seeds: bool = True,
        context_length: int = 131_072,
    ) -> None:
        """Make a backend that plays a script.

        Args:
            script: A document in written form, a `Document`, or one of these for each prompt: a mapping or
                a function from the last user message's text.
            tokenizer: None: one in which each word of the scripts is a token (`word_tokenizer`).
            trained: True if the tags are tokens of the default tokenizer. If not, the model writes the
                document's visible text, and with a context made of some of its lines it goes on there.
            clock: The clock on which latencies are spent.
            latency: Seconds that a token takes.
            thread_latency: Seconds that a token of thread k takes, where that differs.
            faults: Failures of requests.
            piece: Tokens in one piece.
            honours_seeds: The value of `Model.honours_seeds`.
            context_length: Longest prompt with output, in tokens.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        speeds = dict(thread_latency or {})
        if min([latency, *speeds.values()]) < 0 or piece < 1:
            raise InvalidRequestError("latencies must not be negative, and piece at least 1")
        if clock is None:
            clock = VirtualClock() if latency or any(speeds.values()) else REAL_CLOCK
        self.clock: Clock = clock
        """The clock on which the latencies are spent."""
        self.tokenizer: Tokenizer = tokenizer or word_tokenizer(_texts(script), tags=trained)
        self.played: list[Play] = []
        """Every request, in the order in which they came in."""
        self.open: set[Play] = set()
        """Requests that are running."""
        self.max_open: int = 0
        """Largest number of requests that ran at the same time."""
        self._script = script
        # With the template of `chat_tokenizer`: <|user|> <|end|> <|answer|>, or <|plain answer|> at the end.
        empty = [{"role": "user", "content": ""}]
        self._marks = self.tokenizer.encode_chat(empty, {})
        self._plain_mark = self.tokenizer.encode_chat(empty, {"pasta": False})[-1:]
        self._latency = latency
        self._speeds = speeds
        self._piece = piece
        self._faults = tuple(faults)
        self._request_counts = Counter[int]()  # requests of each thread so far
        self._cache: dict[int, Any] = {}  # a prefix tree: each id leads to a dict of the ids that followed it
        self._answers: dict[str, _Script] = {}
        self._closed = asyncio.Event()
        self._model = Model(
            name="scripted",
            tokenizer=self.tokenizer,
            context_length=context_length,
            vocab_size=self.tokenizer.vocab_size,
            honours_seeds=honours_seeds,
        )

    @property
    def requests(self) -> list[DecodeRequest]:
        """Every request that was made, in order."""
        return [play.request for play in self.played]

    @property
    def aborted(self) -> list[DecodeRequest]:
        """Requests that were closed before their end, in the order in which they came in."""
        return [play.request for play in self.played if play.finish_reason == "abort"]

    async def connect(self) -> Model:
        """The scripted model. Never waits, so there is nothing to cancel."""
        return self._model

    async def load(self) -> EngineLoad | None:
        """None: it does not tell. Never waits, so there is nothing to cancel."""
        return None

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Play the request's passage; the last piece has `finish_reason` set.

        Closing it early or cancelling its task ends the request at once, and puts it into `aborted`.

        Raises:
            InvalidRequestError: The context is empty or too long, or has an id outside the vocabulary.
            BackendError: A fault was scripted here, no script fits the prompt, or the backend was closed.
        """
        self._refuse(request)
        passage, fault = self._next_passage(request)
        play = self._enter(request)
        speed = self._speeds.get(request.thread, self._latency)
        try:
            for piece in self._pieces(passage, play, fault):
                await (self.clock.sleep(speed * len(piece.ids)) if speed else asyncio.sleep(0))
                self._check_open()
                play.ids += piece.ids
                if piece.finish_reason is not None:
                    self._leave(play, piece.finish_reason)
                yield piece
            if play.finish_reason is None and fault is not None:
                if fault.kind == "stall":
                    await self._closed.wait()
                    self._check_open()
                self._leave(play, "error")
                raise fault.error or BackendError(f"scripted: failure of thread {fault.thread}")
        finally:
            if play.finish_reason is None:
                self._leave(play, "abort")

    async def aclose(self) -> None:
        """End every open request with an error. Never waits, so there is nothing to cancel."""
        self._closed.set()

    def _refuse(self, request: DecodeRequest) -> None:
        self._check_open()
        ids = request.ids
        limit = self._model.context_length
        if not ids or min(ids) < 0 or max(ids) >= self._model.vocab_size:
            raise InvalidRequestError(f"ids must be 0 to {self._model.vocab_size - 1}, and at least one")
        if len(ids) >= limit or request.max_tokens < 1:
            raise InvalidRequestError(f"{len(ids)} tokens leave no room in a context of {limit}: send fewer")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise BackendError("scripted: this backend was closed; make another one")

    def _next_passage(self, request: DecodeRequest) -> tuple[Passage, Fault | None]:
        """The tokens that the request is answered with, and the failure that ends it."""
        thread = request.thread
        answer = self._answers.get(request.answer)
        if answer is None:
            answer = self._answers[request.answer] = self._open_answer(request)
        number = self._request_counts[thread]
        self._request_counts[thread] += 1
        faults = [
            fault
            for fault in self._faults
            if fault.thread == thread and fault.skip <= number < fault.skip + fault.times
        ]
        first = min(faults, key=lambda fault: fault.after_tokens, default=None)
        return answer.find(thread, request.ids), first

    def _open_answer(self, request: DecodeRequest) -> _Script:
        question, plain = self._question(request.ids)
        if tags := self.tokenizer.tags:  # with another template this alone tells
            plain = plain or {*tags} <= {*request.banned_ids}
        script = self._script
        if not isinstance(script, str | Document):
            script = script(question) if callable(script) else script.get(question)
        if script is None:
            raise BackendError(f"scripted: there is no script for the prompt {question!r}")
        return _Script(script, self.tokenizer, len(request.ids), plain=plain)

    def _question(self, ids: tuple[int, ...]) -> tuple[str, bool]:
        """The last user message of a context, and True if a plain answer follows.

        A context that is no chat of the template of `chat_tokenizer` is one message as a whole.
        """
        if len(self._marks) != 3 or self._marks[0] not in ids:
            return self.tokenizer.decode(ids), False
        user, end, answer = self._marks
        answers = [token for token in ids if token in (answer, *self._plain_mark)]
        start = len(ids) - 1 - ids[::-1].index(user)
        stop = ids.index(end, start) if end in ids[start:] else len(ids)
        return self.tokenizer.decode(ids[start + 1 : stop]), answers[-1:] == self._plain_mark

    def _enter(self, request: DecodeRequest) -> Play:
        # A prompt's KV is cached when its request begins; the last token is computed in any case.
        cached_tokens = min(self._remember(request.ids), len(request.ids) - 1)
        play = Play(request, self.clock.time(), cached_tokens=cached_tokens)
        self.played.append(play)
        self.open.add(play)
        self.max_open = max(self.max_open, len(self.open))
        return play

    def _leave(self, play: Play, finish_reason: FinishReason) -> None:
        play.finish_reason = finish_reason
        play.ended = self.clock.time()
        self.open.remove(play)
        self._remember((*play.request.ids, *play.ids[:-1]))  # the last token was never fed to the model

    def _remember(self, ids: tuple[int, ...]) -> int:
        """Keep a sequence in the prefix cache; returns the length of its beginning that was there before."""
        matched = 0
        node = self._cache
        for token in ids:
            matched += token in node
            node = node.setdefault(token, {})
        return matched

    def _pieces(self, passage: Passage, play: Play, fault: Fault | None) -> Iterator[Piece]:
        """Cut a passage into pieces, up to the end of the request or its failure."""
        request = play.request
        limit = min(request.max_tokens, self._model.context_length - len(request.ids))
        # The request ends behind the first stop id, or at its limit.
        ends = {*request.stop_ids, *self._model.end_ids}
        count = next(number for number, token in enumerate(passage, 1) if token in ends)
        finish_reason: RequestEnd = "stop" if count <= limit else "length"
        count = min(count, limit)
        sent = count if fault is None else min(count, fault.after_tokens)
        for start in range(0, sent, self._piece):
            ids = passage[start : min(start + self._piece, sent)]
            is_last = start + len(ids) == count
            yield Piece(ids, finish_reason, play.cached_tokens) if is_last else Piece(ids)


def _texts(script: ScriptSource) -> Iterator[str]:
    """The texts that a model of this script may read or write, whose words get tokens."""
    scripts: list[ScriptLike] = []
    if isinstance(script, str | Document):
        scripts.append(script)
    elif isinstance(script, Mapping):
        yield from script
        scripts += script.values()
    for document in scripts:
        yield document if isinstance(document, str) else document.format()


_NEXT_LINE = re.compile(r"\n+(?=\S)")


def _read_on(text: str, context: str) -> str:
    """The rest of a text, as an untrained model would go on that has seen only some lines of it.

    Each line of the context is looked for behind the one before. If the context ends with a line break, the
    rest begins with the next line that is not indented.
    """
    end = 0  # of the last line that was found
    for line in context.splitlines():
        if line.strip():
            line = line.removesuffix(" ...")  # in main's context of an outline, it stands in place of an item
            start = text.find(line, end)
            if start < 0:
                return ""
            end = start + len(line)
    rest = text[end:]
    if context.endswith("\n"):
        next_line = _NEXT_LINE.search(rest)
        return rest[next_line.end() :] if next_line else ""
    return rest


class _Script:
    """A document as the passages of an answer's threads, and how far each of them has got.

    A thread goes on in its passage if its context is the one with which the passage began, and a part of the
    passage behind it. With any other context main goes on to its next passage (chunks were joined), and a
    chunk starts again.

    A model without tags has one text; with any other context than the prompt it goes on as `_read_on` says.

    Args:
        script: The document.
        tokenizer: The tokenizer of the model that plays it.
        prompt: Length of the answer's prompt in tokens.
        plain: True for the visible text as one passage of main.
    """

    def __init__(self, script: ScriptLike, tokenizer: Tokenizer, prompt: int, *, plain: bool) -> None:
        document = parse(script) if isinstance(script, str) else script
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._end = tokenizer.end_ids[:1]
        self._text = document.text
        self._passages: dict[int, list[Passage]] = {}
        self._begun: dict[int, tuple[int, Passage, Passage]] = {}
        """The number of each thread's passage, the context before it, and its ids."""
        if plain or tokenizer.tags is None:
            self._passages[0] = [(*tokenizer.encode(self._text), *self._end)]
            return
        for view in views(document):
            passage = tokenizer.encode_segments(view.target) + self._end
            self._passages.setdefault(view.thread, []).append(passage)

    def find(self, thread: int, ids: tuple[int, ...]) -> Passage:
        """The ids that a request with this context is answered with."""
        number, start, passage = self._begun.get(thread, (-1, (), ()))
        if number >= 0 and ids[: len(start)] == start:
            written = ids[len(start) :]
            if passage[: len(written)] == written:
                rest = passage[min(len(written), len(passage) - 1) :]
                # If only end-of-text is left, main goes on to its next passage, if it has one.
                if len(rest) > 1 or not written or number + 1 >= len(self._passages.get(thread, ())):
                    return rest
        number = 0 if thread else number + 1
        passage = self._passage(thread, number, ids)
        self._begun[thread] = number, ids, passage
        return passage

    def _passage(self, thread: int, number: int, ids: tuple[int, ...]) -> Passage:
        if self._tokenizer.tags is None and (thread or number):
            context = self._tokenizer.decode(ids[self._prompt :])
            return (*self._tokenizer.encode(_read_on(self._text, context)), *self._end)
        passages = self._passages.get(thread, [])
        return passages[number] if number < len(passages) else self._end
