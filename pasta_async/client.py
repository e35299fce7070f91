"""The client: one backend, many answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar, Unpack, cast
from uuid import uuid4

from pasta_async.backends import BackendOptions, open_backend
from pasta_async.backends.single_flight import SingleFlight
from pasta_async.clock import REAL_CLOCK, Clock, time_limit
from pasta_async.errors import (
    BackendProtocolError,
    GenerationTimeoutError,
    InvalidRequestError,
    InvalidStateError,
    PastaError,
)
from pasta_async.events import Emit
from pasta_async.interpreter.admission import Admission, AnswerSlots
from pasta_async.interpreter.machine import Machine
from pasta_async.interpreter.reading import THINK_OPEN
from pasta_async.interpreter.retry import with_retries
from pasta_async.interpreter.runner import Runner
from pasta_async.load import EngineLoad
from pasta_async.observers import AnswerStart, Observation, Observer
from pasta_async.options import AnswerOptions, Limits, Sampling, Settings, listing_options
from pasta_async.prompting import (
    USER_PROBE,
    Prompt,
    check_ids,
    check_json,
    check_length,
    check_text,
    read_prompt,
)
from pasta_async.protocol import Backend, LoadReporting, Message, ModelInfo
from pasta_async.results import Generation
from pasta_async.streaming import AnswerStream, Watch
from pasta_async.tag_tokens import TagIds

_T = TypeVar("_T")

_FORMS = 64
"""So much is remembered of the chat template, by the values that it is given, and of prompts' ends."""

_END = 8
"""Ids at the end of a prompt in which a thinking block would be opened."""

_LAST = 5
"""The last of them tell prompts' ends apart: as many as chat templates usually write behind a message."""

_PLAIN: dict[str, Any] = {"pasta": False}
"""The switch in the chat template of a model that was trained on both forms: no tags."""


class _Ready(NamedTuple):
    """What is decided of an answer before it is decoded."""

    tags: TagIds | None
    """Ids of the tags that are read; None for an answer without tags."""
    ids: list[int]
    thinking: bool
    notes: tuple[str, ...]


class Client:
    """One backend, one connection pool and one set of limits over many answers.

    Use it as `async with Client(...) as client`, within one event loop.

    Args:
        backend: `local:`, `local:pasta-smol`, `local:/path`, `http://host:30000` (SGLang), `sglang:/path`
            (one started here); or a `Backend`, which is then not closed here.
            None: `PASTA_BACKEND`, or `local:`.
        limits: What is not set in them comes from the environment (`PASTA_TIMEOUT`), or is the default.
        clock: What time-outs are measured on; tests pass a `VirtualClock`.
        observers: Are told what its answers do: `pasta_async.telemetry` has metrics, traces and logs.
        options: Of the backend that is opened: `api_key`, `tokenizer`, `device` and so on.

    Raises:
        InvalidRequestError: A value is bad. Nothing is reached or loaded yet.
    """

    def __init__(
        self,
        backend: str | Backend | None = None,
        *,
        limits: Limits | Mapping[str, Any] | None = None,
        clock: Clock = REAL_CLOCK,
        observers: Sequence[Observer] = (),
        **options: Unpack[BackendOptions],
    ) -> None:
        _check_parts(clock, observers)
        settings = Settings()
        self.limits: Limits = Limits.of(limits).over(settings.limits)
        self._clock = clock
        self.observers: list[Observer] = list(observers)
        """Told of the answers that begin from now on."""
        self._backend, self._owned = _open(backend, settings, self.limits, options)
        self._admission = Admission(self.limits.client_threads, self._load, clock)
        self._connecting = SingleFlight[ModelInfo]()
        self._encoding = SingleFlight[list[int]]()
        self._info: ModelInfo | None = None
        self._template: dict[tuple[str, str], Any] = {}  # what was learnt of it
        self._closed = False

    async def __aenter__(self) -> Self:
        """Open the client. The backend is reached, or loaded, by the first answer or by `connect`."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the client."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the backend, unless it was passed in as an object. Cancelling it may leave it half closed."""
        self._closed = True
        if self._owned:
            await self._backend.aclose()

    @property
    def backend(self) -> Backend:
        """Where the tokens come from."""
        return self._backend

    async def connect(self) -> ModelInfo:
        """Reach or load the model now rather than with the first answer. Cancelling it is safe.

        Raises:
            BackendError: What is wrong, where, and what to do.
            InvalidStateError: The client was closed.
        """
        return await self._connected(self.limits)

    async def _connected(self, limits: Limits) -> ModelInfo:
        if self._closed:
            raise InvalidStateError("this client was closed; make another one")
        if self._info is None:
            self._info = await self._connecting.run(
                lambda: with_retries(self._backend.connect, limits.retries, self._clock), limits.retries
            )
        return self._info

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text as it is, without a chat template: a prompt for several answers, read once.

        Raises:
            InvalidRequestError: It is no text, or longer than the model or the limits take.
            GenerationTimeoutError: It took longer than `Limits.timeout`.
            BackendError: The backend cannot be used.

        Cancelling it is safe.
        """
        check_text(text)
        async with self._time_limit(self.limits):
            info = await self.connect()
            ids = await with_retries(lambda: self._backend.encode(text), self.limits.retries, self._clock)
        check_length(ids, info, self.limits)
        return ids

    @listing_options
    async def generate(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Generation:
        """Answer a prompt, decoding in parallel what the model marks as independent.

        Args:
            prompt: A text, or chat messages: tags in them are data, never commands. Or token ids, which are
                taken as they are, without a chat template.
            options: How it is answered: `pasta_async.AnswerOptions` describes them.

        Raises:
            InvalidRequestError: A value is bad; nothing was sent.
            PromptTooLongError: The prompt is longer than the model or `Limits.prompt_tokens` takes; the same.
            InvalidStateError: The client was closed.
            ThreadFailedError: A thread failed. `partial` is the answer so far, as on every error but those of
                refused options.
            GenerationTimeoutError: The time was up.
            BackendError: The backend cannot be used.

        Cancelling it ends every thread and aborts every request before the cancellation goes on.
        """
        return await self._answer(self._start(prompt, options, streamed=False))

    @listing_options
    def stream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """The same as `generate`, watched: `async with client.stream(...) as s: async for event in s: ...`.

        Args and errors are those of `generate`; bad values are refused by this call, the rest comes from the
        stream. Leaving the block ends every thread and aborts every request that is still open.
        """
        return AnswerStream(partial(self._answer, self._start(prompt, options, streamed=True)))

    def _start(self, prompt: Prompt, options: AnswerOptions, *, streamed: bool) -> AnswerStart:
        """What was asked for, checked but for the prompt."""
        given: dict[str, Any] = {**options}
        if unknown := sorted(given.keys() - AnswerOptions.__optional_keys__):
            raise InvalidRequestError(f"an answer has no option {unknown[0]!r}; see AnswerOptions")
        sampling = Sampling.of(given.pop("sampling", None)).model_dump(exclude_unset=True)
        direct = {name: given.pop(name, None) for name in Sampling.model_fields}
        sampling |= {name: value for name, value in direct.items() if value is not None}
        limits = Limits.of(given.pop("limits", None))
        kwargs = given.pop("chat_template_kwargs", None)
        check_json(kwargs, "chat_template_kwargs")
        return AnswerStart(
            answer=uuid4().hex,
            prompt=prompt,
            streamed=streamed,
            sampling=Sampling(**sampling),
            limits=limits.over(self.limits),
            chat_template_kwargs={} if kwargs is None else kwargs,
            **given,
        )

    async def _answer(
        self, start: AnswerStart, emit: Emit | None = None, watch: Watch | None = None
    ) -> Generation:
        try:
            with Observation(tuple(self.observers), start) as observation:
                observation.generation = await self._decode(start, observation, emit, watch)
                return observation.generation
        except PastaError as error:
            if error.partial is None:
                error.partial = Generation.empty()
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            itself = BackendProtocolError("the backend cancelled a call by itself; nobody had asked for that")
            itself.partial = Generation.empty()
            raise itself from error

    async def _decode(
        self, start: AnswerStart, observation: Observation, emit: Emit | None, watch: Watch | None
    ) -> Generation:
        asked, limits = read_prompt(start.prompt), start.limits
        deadline = None if limits.timeout is None else self._clock.time() + limits.timeout
        with self._admission.answer(limited=start.parallel == "auto") as slots:
            async with self._time_limit(limits):
                info = await self._connected(limits)
                observation.begin(info)
                began = self._clock.time()
                ready = await self._prepare(info, start, *asked, slots)
            check_length(ready.ids, info, limits)

            machine = Machine(
                info,
                ready.tags,
                start,
                thinking=ready.thinking,
                listen=emit is not None,
                notes=ready.notes,
            )
            runner = Runner(
                self._backend,
                machine,
                prompt=ready.ids,
                slots=slots,
                clock=self._clock,
                began=began,
                deadline=deadline,
                emit=emit,
                observer=observation,
            )
            observation.partial = runner.partial
            if watch:
                watch(runner.partial)
            return await runner.run()

    async def _load(self) -> EngineLoad | None:
        """How busy the engine is; None if the backend does not tell."""
        return await self._backend.load() if isinstance(self._backend, LoadReporting) else None

    async def _prepare(
        self, info: ModelInfo, start: AnswerStart, messages: list[Message], ids: list[int], slots: AnswerSlots
    ) -> _Ready:
        """Decide in which form an answer is written, and encode its prompt for that."""
        tags = None if start.baseline else info.tags
        notes = _notes(info, start)
        check_ids(ids, info.vocab_size)
        # An answer with a seed repeats only in the form that does not follow the load.
        if tags and messages and start.sampling.seed is None and (crowd := await slots.crowded()):
            if await self._has_switch(start):
                tags = None
                notes = (*notes, f"answered without tags: {crowd}")
        if not ids:
            kwargs = {**({} if tags else _PLAIN), **start.chat_template_kwargs}
            ids = await self._encode_chat(messages, kwargs, start)
        return _Ready(tags, ids, await self._ends_in_thinking(ids, start), notes)

    async def _learn(self, what: str, kwargs: Mapping[str, Any], find: Callable[[], Awaitable[_T]]) -> _T:
        """What is the same for many prompts, of the chat template or their ends: it is found out once."""
        key = what, json.dumps(kwargs, sort_keys=True)
        if key not in self._template:
            if len(self._template) >= _FORMS:  # callers choose what the template is given
                self._template.clear()
            self._template[key] = await find()
        return self._template[key]

    async def _has_switch(self, start: AnswerStart) -> bool:
        """Whether the model can be told to answer without tags, by a switch in its chat template."""

        async def find() -> bool:
            probe: list[Message] = [{"role": "user", "content": USER_PROBE}]
            plain, own = [
                await self._encode_chat(probe, {**switch, **start.chat_template_kwargs}, start)
                for switch in (_PLAIN, {})
            ]
            return plain != own

        return await self._learn("switch", start.chat_template_kwargs, find)

    @asynccontextmanager
    async def _time_limit(self, limits: Limits) -> AsyncGenerator[None]:
        """For what comes before decoding."""
        try:
            async with time_limit(self._clock, limits.timeout):
                yield
        except TimeoutError as error:
            if isinstance(error, PastaError) or limits.timeout is None:
                raise
            raise GenerationTimeoutError(
                f"connecting and encoding took longer than Limits.timeout = {limits.timeout:g} s"
            ) from error

    async def _encode_chat(
        self, messages: list[Message], kwargs: Mapping[str, Any], start: AnswerStart
    ) -> list[int]:
        """Ids of a chat; several answers to one conversation, asked for together, share the encoding."""
        encode, retries = partial(self._backend.encode_chat, messages, kwargs), start.limits.retries
        key = json.dumps([messages, kwargs, retries], sort_keys=True)
        return await self._encoding.run(lambda: with_retries(encode, retries, self._clock), key)

    async def _ends_in_thinking(self, ids: list[int], start: AnswerStart) -> bool:
        """Whether a prompt opens a thinking block at its end."""
        what = f"end of {ids[-_LAST:]}"
        text = await self._learn(what, {}, lambda: self._detokenize(ids[-_END:], start))
        return text.rstrip().endswith(THINK_OPEN)

    async def _detokenize(self, ids: list[int], start: AnswerStart) -> str:
        return await with_retries(lambda: self._backend.detokenize(ids), start.limits.retries, self._clock)


def _check_parts(clock: object, observers: object) -> None:
    if not isinstance(clock, Clock):
        raise InvalidRequestError(f"clock needs to be a `Clock`; got {clock!r:.80}")
    listed = cast("Sequence[object]", observers) if isinstance(observers, Sequence) else [None]
    if not all(isinstance(one, Observer) for one in listed):
        raise InvalidRequestError(f"observers need to be a list of `Observer`s; got {observers!r:.80}")


def _open(
    backend: object, settings: Settings, limits: Limits, options: BackendOptions
) -> tuple[Backend, bool]:
    """The backend, and whether it was opened here and so has to be closed here."""
    if backend is not None and not isinstance(backend, str):
        if not isinstance(backend, Backend):
            raise InvalidRequestError(f"a backend is named by a string, or is a Backend; got {backend!r}")
        if options:
            raise InvalidRequestError(f"{', '.join(options)}: options are for backends that are opened here")
        return backend, False
    url = settings.backend if backend is None else backend
    if url.startswith(("http:", "https:")):
        key = settings.api_key.get_secret_value() if settings.api_key else None
        options = {"api_key": key, "max_connections": limits.client_threads, **options}
    return open_backend(url, **options), True


def _notes(info: ModelInfo, start: AnswerStart) -> tuple[str, ...]:
    """Remarks on an answer: what the backend says, and what of the options it cannot honour."""
    notes, sampling = info.notes, start.sampling
    if info.tags is None and not start.baseline:
        notes = (*notes, f"{info.name} has no tag tokens, so it answers in sequence")
    if sampling.seed is not None and sampling.temperature > 0 and not info.honours_seeds:
        notes = (*notes, f"{info.name}: this backend does not honour seeds, so the answer need not repeat")
    return notes


@listing_options
async def generate(
    prompt: Prompt,
    *,
    backend: str | Backend | None = None,
    api_key: str | None = None,
    **options: Unpack[AnswerOptions],
) -> Generation:
    """Answer one prompt on a client of its own; for more than one, keep a `Client`.

    `backend` and `api_key` (None: `PASTA_API_KEY`) are for the client, the others for
    `Client.generate`, which describes them, the errors, and what cancelling does.
    """
    async with _short_lived(backend, api_key) as client:
        return await client.generate(prompt, **options)


@listing_options
@asynccontextmanager
async def stream(
    prompt: Prompt,
    *,
    backend: str | Backend | None = None,
    api_key: str | None = None,
    **options: Unpack[AnswerOptions],
) -> AsyncGenerator[AnswerStream]:
    """Watch one answer on a client of its own: `async with pasta_async.stream(...) as s`.

    What may be passed is described at `generate`. Leaving the block ends the answer with all its requests.
    """
    async with _short_lived(backend, api_key) as client, client.stream(prompt, **options) as answer:
        yield answer


def _short_lived(backend: str | Backend | None, api_key: str | None) -> Client:
    return Client(backend) if api_key is None else Client(backend, api_key=api_key)
