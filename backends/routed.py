"""Several backends behind the protocol of one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from pasta_async.backends.placement import Placement
from pasta_async.backends.single_flight import SingleFlight
from pasta_async.clock import REAL_CLOCK, Clock, time_limit
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendLostError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
    UnsupportedModelError,
)
from pasta_async.load import EngineLoad
from pasta_async.protocol import Backend, DecodeRequest, LoadReporting, Message, ModelInfo, PassThrough, Piece

_T = TypeVar("_T")

_LOG = logging.getLogger(__name__)

START_SECONDS = 10.0
"""How long `connect` waits for all members, once one has answered."""

PROBE_SECONDS, LONGEST_PROBE_SECONDS, PROBE_TIMEOUT = 1.0, 30.0, 20.0
"""Between a loss and the first probe, between two probes at most (the time doubles), and for one probe."""

MALFORMED_ANSWERS = 3
"""Answers, one after another, to whose requests a member replies malformed before it is taken out."""

_SAMPLE = "One prompt, 2 servers: naïve “quotes”,\n\ttabs and <sync/> 12345."
"""Text that different tokenizers encode differently."""


@runtime_checkable
class Checkable(Protocol):
    """A backend that can be asked anew whether it can be used; of others, `connect` has to tell."""

    async def check(self) -> ModelInfo:
        """What the backend serves by now. Cancelling it leaves nothing behind.

        Raises:
            BackendError: What `Backend.connect` raises: it cannot be used.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Model:
    """What a member serves, as far as it can be told apart: weights cannot."""

    info: ModelInfo
    sample: tuple[int, ...]
    """Ids of a text, which tell tokenizers apart."""

    def difference(self, other: _Model) -> str:
        """In what the other is another model; empty if in nothing."""
        for name in ("name", "vocab_size", "end_ids", "tags"):
            mine, its = getattr(self.info, name), getattr(other.info, name)
            if mine != its:
                return f"{name} {mine!r} and {its!r}"
        return "" if self.sample == other.sample else "tokenizers that encode the same text differently"


@dataclass(eq=False, slots=True)
class Member:
    """A backend among others."""

    name: str
    """Its address."""
    backend: Backend
    error: BackendError | None = None
    """Why it is out; None while it is in."""
    open_requests: int = 0
    """Requests that it decodes for us."""
    losses: int = 0
    """How often it was taken out."""
    malformed: set[str] = field(default_factory=set[str])
    """Answers that ended with a malformed reply since it last finished a request as it should."""

    @property
    def live(self) -> bool:
        """Whether it is in."""
        return self.error is None

    async def learn(self) -> _Model:
        """Ask what it serves; BackendError if it cannot be used. Cancelling it leaves nothing behind."""
        backend = self.backend
        try:
            info = await (backend.check() if isinstance(backend, Checkable) else backend.connect())
            return _Model(info, tuple(await backend.encode(_SAMPLE)))
        except BackendError:
            raise
        except Exception as error:
            _LOG.exception("%s failed", self.name)
            unexpected = BackendError(f"{type(error).__name__}: {error}")
            unexpected.retryable = True
            raise unexpected from error


class RoutedBackend:
    """Spreads answers over several backends that serve the same model.

    An answer stays where it began, since its threads share a prefix cache; `Placement` says where that is. A
    member that is gone is taken out, and its requests end with `BackendLostError`: the interpreter sends
    them, or the whole answer, to another one (`Limits.retries`). A task for each member that is out asks it
    from time to time, and takes it in again once it serves the same model as the rest; `aclose` ends these
    tasks. docs/serving.md tells the rules.

    Attributes:
        members: What each of them is and does at the moment, in the order given. To be read only.

    Args:
        members: Backends by name, usually their addresses. They are closed with this one.
        clock: What probes wait on; tests pass a `VirtualClock`.
    """

    def __init__(self, members: Mapping[str, Backend], *, clock: Clock = REAL_CLOCK) -> None:
        if not members:
            raise InvalidRequestError("no backend was named")
        self.members: tuple[Member, ...] = tuple(Member(*one) for one in members.items())
        self._by_name = {member.name: member for member in self.members}
        self._clock = clock
        self._placement = Placement()
        self._probes: set[asyncio.Task[None]] = set()
        self._connecting = SingleFlight[_Model]()
        self._model: _Model | None = None
        self._closed = False

    async def connect(self) -> ModelInfo:
        """Reach the members, once. One at least must be usable; others have ten seconds, and may join later.

        Raises:
            BackendConnectError: None can be used, and why.
            UnsupportedModelError: They do not serve the same model.

        Cancelling it leaves nothing behind.
        """
        return (self._model or await self._connecting.run(self._start)).info

    async def _start(self) -> _Model:
        """Learn the model that all serve: members that cannot be used stay out."""
        models: dict[str, _Model] = {}
        for member, task in (await self._ask_all()).items():
            try:
                models[member.name], member.error = task.result(), None
            except asyncio.CancelledError:
                member.error = BackendTimeoutError(f"it did not answer within {START_SECONDS:g} s")
            except BackendError as error:
                member.error = error
        if not models:
            unusable = self._none_usable()
            unusable.retryable = any(member.error and member.error.retryable for member in self.members)
            raise unusable
        self._model = _common(models)
        for member in self.members:
            if member.error:
                _LOG.warning("%s is left out: %s", member.name, _loggable(member.error))
                self._probe(member)
        return self._model

    async def _ask_all(self) -> dict[Member, asyncio.Task[_Model]]:
        """Ask every member what it serves; tasks of those that do not tell in time are cancelled."""
        tasks = {member: asyncio.create_task(member.learn()) for member in self.members}
        try:
            with suppress(TimeoutError):
                async with time_limit(self._clock, START_SECONDS):
                    await asyncio.wait(tasks.values())
            while pending := [task for task in tasks.values() if not task.done()]:
                if any(task.done() and not task.exception() for task in tasks.values()):
                    break
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values())
        return tasks

    async def encode(self, text: str) -> list[int]:
        """Encode text as data, on any member. May be cancelled at any point."""
        return await self._anywhere(lambda backend: backend.encode(text))

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template, on any member. May be cancelled at any point."""
        return await self._anywhere(lambda backend: backend.encode_chat(messages, template_kwargs))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, by any member. May be cancelled at any point."""
        return await self._anywhere(lambda backend: backend.detokenize(ids))

    async def _anywhere(self, work: Callable[[Backend], Awaitable[_T]]) -> _T:
        """Have something done by any member; those that turn out to be gone are passed over."""
        await self.connect()
        while True:
            member = min(self._live(), key=lambda member: member.open_requests)
            try:
                return await work(member.backend)
            except BackendError as error:
                if not _is_gone(error):
                    raise
                self._take_out(member, error)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request where its answer began, or choose its place.

        Closing it early or cancelling its task aborts the request as its member does.

        Raises:
            BackendLostError: The member is gone; another takes the request if it is sent again.
            BackendConnectError: No member is left.
            BackendError: The member failed otherwise.
        """
        await self.connect()
        member = self._by_name[self._placement.place(request.answer, request.ids, self._loads())]
        with self._watched(member, request.answer):
            async with aclosing(member.backend.decode(request)) as pieces:
                async for piece in pieces:
                    yield piece

    async def load(self, answer: str) -> EngineLoad | None:
        """The load of the member that has an answer; before its first request, of the one with least to do.

        Raises:
            BackendError: What the member's `load` raises. That ends no answer.

        Cancelling it cancels the member's `load`.
        """
        name = self._placement.known(answer)
        member = self._by_name[name] if name else min(self._live(), key=lambda member: member.open_requests)
        backend = member.backend
        found = await backend.load(answer) if isinstance(backend, LoadReporting) else None
        return found and replace(found, engine=member.name)

    async def openai(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request to a member's own OpenAI endpoint: see `pasta_async.protocol.PassThrough`.

        It goes where requests with the same tools and first messages went. Closing it early or cancelling
        its task aborts the request as its member does.

        Raises:
            InvalidRequestError: The member has no such endpoint.
            BackendError: As for `decode`.
        """
        await self.connect()
        asked = json.dumps([body.get("tools"), body.get("messages", body.get("prompt"))]).encode()
        member = self._by_name[self._placement.choose(asked, self._loads())]
        if not isinstance(member.backend, PassThrough):
            raise InvalidRequestError(f"{member.name} has no OpenAI endpoint of its own")
        with self._watched(member, asked.hex()):
            async with aclosing(member.backend.openai(path, body)) as events:
                async for event in events:
                    yield event

    @contextmanager
    def _watched(self, member: Member, answer: str) -> Generator[None]:
        """Count a request of this member, and take the member out if it turns out to be gone."""
        losses = member.losses
        member.open_requests += 1
        try:
            yield
            member.malformed.clear()
        except BackendError as error:
            if not (_is_gone(error) or self._is_garbling(member, answer, error)):
                raise
            if member.losses == losses:  # else another of its requests was quicker to tell
                self._take_out(member, error)
            raise BackendLostError(f"{member.name} was lost: {error}") from error
        finally:
            member.open_requests -= 1

    def _is_garbling(self, member: Member, answer: str, error: BackendError) -> bool:
        """Whether a member sends malformed replies to one answer after another, and others could take them.

        To one answer alone it may be the prompt, which no other member would read any better.
        """
        if isinstance(error, BackendProtocolError):
            member.malformed.add(answer)
        return len(member.malformed) >= MALFORMED_ANSWERS and self._live() != [member]

    async def aclose(self) -> None:
        """End the probes, and close every member. Cancelling it may leave it half closed."""
        self._closed = True  # requests that end now with an error start no new probe
        for task in self._probes:
            task.cancel()
        if self._probes:
            await asyncio.wait(self._probes)
        await asyncio.gather(*(member.backend.aclose() for member in self.members))

    # Out, and in again ------------------------------------------------------------------------------------

    def _live(self) -> list[Member]:
        live = [member for member in self.members if member.live]
        if not live:
            raise self._none_usable()
        return live

    def _loads(self) -> dict[str, int]:
        return {member.name: member.open_requests for member in self._live()}

    def _none_usable(self) -> BackendConnectError:
        why = "".join(f"\n  {member.name}: {member.error}" for member in self.members)
        return BackendConnectError(f"none of the {len(self.members)} backends can be used:{why}")

    def _take_out(self, member: Member, error: BackendError) -> None:
        if member.error is None:
            member.error, member.losses = error, member.losses + 1
            member.malformed.clear()
            self._placement.forget(member.name)
            _LOG.warning("%s is taken out: %s", member.name, _loggable(error))
            self._probe(member)

    def _probe(self, member: Member) -> None:
        if self._closed:
            return
        task = asyncio.create_task(self._bring_back(member), name=f"pasta probe of {member.name}")
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _bring_back(self, member: Member) -> None:
        """Ask a member until it can be used again."""
        assert self._model is not None
        pause = PROBE_SECONDS
        while member.error:
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PROBE_SECONDS)
            try:
                async with time_limit(self._clock, PROBE_TIMEOUT):
                    found = await member.learn()
                if difference := _missing(self._model, found):
                    raise UnsupportedModelError(
                        f"{member.name} came back with another model than the rest: {difference}"
                    )
                member.error = None
            except TimeoutError:
                continue
            except BackendError as error:
                if str(error) != str(member.error):
                    _LOG.warning("%s stays out: %s", member.name, _loggable(error))
                member.error = error
        _LOG.warning("%s is back in", member.name)


def _common(models: Mapping[str, _Model]) -> _Model:
    """The one model that all serve, and what every one of them can do."""
    (name, first), *others = models.items()
    for other, model in others:
        if difference := first.difference(model):
            raise UnsupportedModelError(
                f"{name} and {other} do not serve the same model: they have {difference}. Answers can "
                "only be spread over servers of one model (SGLang: the same --served-model-name too)."
            )
    infos = [model.info for model in models.values()]
    info = replace(
        first.info,
        context_length=min(info.context_length for info in infos),
        honours_seeds=all(info.honours_seeds for info in infos),
        prefill_ahead=all(info.prefill_ahead for info in infos),
        notes=tuple(dict.fromkeys(note for info in infos for note in info.notes)),
    )
    return _Model(info, first.sample)


def _missing(promised: _Model, found: _Model) -> str:
    """What a member that comes back does not give of what was promised; empty if nothing."""
    mine, common = found.info, promised.info
    if mine.context_length < common.context_length:
        return f"context_length {common.context_length} and {mine.context_length}"
    if common.honours_seeds and not mine.honours_seeds:
        return "seeds that are honoured and not"
    return promised.difference(found)


def _loggable(error: BackendError) -> str:
    """What a log may say of an error: one about a malformed reply quotes it, and with it answers."""
    return type(error).__name__ if isinstance(error, BackendProtocolError) else str(error)


def _is_gone(error: BackendError) -> bool:
    """Whether an error is about the server, not the request: the connection broke off, or never came up.

    A 502 and a 504 are a proxy's, which says so of the server behind it; a 503 is a full queue.
    """
    if isinstance(error, BackendStatusError):
        return error.status in (502, 504)
    return isinstance(error, BackendTransportError)
