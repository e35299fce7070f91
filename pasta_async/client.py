"""The client: one backend, many answers."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from uuid import uuid4

import anyio

from pasta_async.clock import REAL_CLOCK, time_limit
from pasta_async.errors import (
    BackendProtocolError,
    GenerationTimeoutError,
    InvalidRequestError,
    InvalidStateError,
    PastaError,
)
from pasta_async.interpreter import (
    THINK_OPEN,
    Machine,
    PrioritySemaphore,
    Runner,
    run_restarting,
    with_retries,
)
from pasta_async.limits import Limits
from pasta_async.observers import AnswerStart, Observation
from pasta_async.prompting import check_ids, check_json, check_length, read_prompt, with_instructions
from pasta_async.protocol import Backend
from pasta_async.results import Generation
from pasta_async.sampling import Sampling
from pasta_async.streaming import AnswerStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from pasta_async.backends import BackendOptions
    from pasta_async.clock import Clock
    from pasta_async.interpreter import Dialect, Fork
    from pasta_async.observers import Observer
    from pasta_async.prompting import Prompt
    from pasta_async.protocol import Message, ModelInfo
    from pasta_async.settings import Settings
    from pasta_async.streaming import Emit, Watch

__all__ = ["Client"]


class Client:
    """One backend, one connection pool and one set of limits over many answers.

    Use it as `async with Client(...) as client`, within one event loop.

    Args:
        backend: `local:`, `local:/path`, `http://host:30000` (SGLang), `sglang:/path` (in-process), or
            several of these, over which answers are spread; or a `Backend`, which is then not closed here.
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
        backend: str | Sequence[str] | Backend | None = None,
        *,
        limits: Limits | Mapping[str, Any] | None = None,
        clock: Clock = REAL_CLOCK,
        observers: Sequence[Observer] = (),
        **options: Unpack[BackendOptions],
    ) -> None:
        from pasta_async.settings import Settings

        settings = Settings()
        self.limits: Limits = Limits.of(limits).over(settings.limits)
        self._clock = clock
        self.observers: list[Observer] = list(observers)
        """Told of the answers that begin from now on."""
        self._backend, self._owned = _open(backend, settings, self.limits, options)
        self._slots = PrioritySemaphore(self.limits.client_threads)
        self._connecting = anyio.Lock()
        self._info: ModelInfo | None = None
        self._thinking: dict[tuple[str, str], bool] = {}
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
        if self._closed:
            raise InvalidStateError("this client was closed; make another one")
        async with self._connecting:
            if self._info is None:
                self._info = await with_retries(self._backend.connect, self.limits.retries, self._clock)
        return self._info

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text as it is, without a chat template: a prompt for several answers, read once.

        Raises:
            InvalidRequestError: It cannot be encoded, or is longer than the model or the limits take.
            GenerationTimeoutError: It took longer than `Limits.timeout`.
            BackendError: The backend cannot be used.

        Cancelling it is safe.
        """
        async with self._time_limit(self.limits):
            info = await self.connect()
            ids = await with_retries(lambda: self._backend.encode(text), self.limits.retries, self._clock)
        check_length(ids, info, self.limits)
        return ids

    async def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | Mapping[str, Any] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        max_tokens: int | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        prompted: bool | None = None,
        baseline: bool = False,
        parallel: bool = True,
        fork: Fork = "stream",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        whole_chunks: bool = False,
    ) -> Generation:
        """Answer a prompt, decoding in parallel what the model marks as independent.

        Args:
            prompt: A text, or chat messages: tags in them are data, never commands. Or token ids, which are
                taken as they are, without a chat template.
            sampling: Greedy unless given; a mapping of its fields will do.
            temperature: This and the six that follow are laid over `sampling`; `Sampling` describes them.
            top_p: See `Sampling`.
            top_k: See `Sampling`.
            min_p: See `Sampling`.
            seed: See `Sampling`.
            stop: See `Sampling`; one text will do.
            max_tokens: See `Sampling`.
            limits: For this answer, laid over the client's (`client_threads` is always the client's).
            prompted: Whether the model is told about PASTA-LANG in the system message, and its tags are read
                as text. None: it is, unless the tags are in its vocabulary. In a prompt of token ids nothing
                is told: None then has a model answer without tags, unless they are in its vocabulary.
            baseline: Answer without any tag, for comparison.
            parallel: False decodes the same views one after another: a test aid, not the baseline.
            fork: "stream" starts threads while main's request runs on; "cut" ends main's request at each
                promise and sends it again, so that its decoded KV is in the prefix cache.
            chat_template_kwargs: Passed to the model's chat template.
            whole_chunks: Ask a server for each chunk in one piece: less CPU time here (docs/benchmarks.md),
                but a chunk is known only when it is done, so a partial answer lacks those under way.

        Raises:
            InvalidRequestError: A value is bad; nothing was sent.
            PromptTooLongError: The prompt is longer than the model or `Limits.prompt_tokens` takes; the same.
            InvalidStateError: The client was closed.
            ThreadFailedError: A thread failed. `partial` is the answer so far, as on every error.
            GenerationTimeoutError: The time was up.
            BackendError: The backend cannot be used.

        Cancelling it ends every thread and aborts every request before the cancellation goes on.
        """
        return await self._answer(
            self._start(
                prompt,
                streamed=False,
                sampling=sampling,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                min_p=min_p,
                seed=seed,
                stop=stop,
                max_tokens=max_tokens,
                limits=limits,
                prompted=prompted,
                baseline=baseline,
                parallel=parallel,
                fork=fork,
                chat_template_kwargs=chat_template_kwargs,
                whole_chunks=whole_chunks,
            )
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | Mapping[str, Any] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        max_tokens: int | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        prompted: bool | None = None,
        baseline: bool = False,
        parallel: bool = True,
        fork: Fork = "stream",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        whole_chunks: bool = False,
    ) -> AnswerStream:
        """The same as `generate`, watched: `async with client.stream(...) as s: async for event in s: ...`.

        Args and errors are those of `generate`; bad values are refused by this call, the rest comes from the
        stream. Leaving the block ends every thread and aborts every request that is still open.
        """
        start = self._start(
            prompt,
            streamed=True,
            sampling=sampling,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            stop=stop,
            max_tokens=max_tokens,
            limits=limits,
            prompted=prompted,
            baseline=baseline,
            parallel=parallel,
            fork=fork,
            chat_template_kwargs=chat_template_kwargs,
            whole_chunks=whole_chunks,
        )

        async def run(emit: Emit, watch: Watch) -> Generation:
            return await self._answer(start, emit, watch)

        return AnswerStream(run)

    def _start(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | Mapping[str, Any] | None,
        stop: str | Sequence[str] | None,
        limits: Limits | Mapping[str, Any] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
        **values: Any,
    ) -> AnswerStart:
        """What was asked for, checked but for the prompt."""
        given = {
            name: values.pop(name)
            for name in ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
        }
        given["stop"] = (stop,) if isinstance(stop, str) else stop
        laid_over = {name: value for name, value in given.items() if value is not None}
        kwargs: Any = {} if chat_template_kwargs is None else chat_template_kwargs
        check_json(kwargs, "chat_template_kwargs")
        return AnswerStart(
            answer=uuid4().hex,
            prompt=prompt,
            sampling=Sampling(**{**Sampling.of(sampling).model_dump(exclude_unset=True), **laid_over}),
            limits=Limits.of(limits).over(self.limits),
            chat_template_kwargs=kwargs,
            **values,
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
                error.partial = Generation.empty(parallel=start.parallel)
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise _cancelled_itself(start) from error

    async def _decode(
        self, start: AnswerStart, observation: Observation, emit: Emit | None, watch: Watch | None
    ) -> Generation:
        messages, ids = read_prompt(start.prompt)
        sampling, limits = start.sampling, start.limits
        deadline = None if limits.timeout is None else self._clock.time() + limits.timeout
        async with self._time_limit(limits):
            info = await self.connect()
            observer = observation.begin(info)
            began = self._clock.time()
            dialect = _dialect(info, start, can_instruct=not ids)
            check_ids(ids, info.vocab_size)
            ids, thinking = await self._encode(ids, messages, dialect, start)
        check_length(ids, info, limits)

        def attempt(show: Emit | None, notes: tuple[str, ...]) -> Awaitable[Generation]:
            machine = Machine(
                info,
                dialect,
                limits,
                max_tokens=sampling.max_tokens,
                stop=sampling.stop,
                fork=start.fork,
                thinking=thinking,
                listen=show is not None,
                parallel=start.parallel,
                notes=(*_notes(info, sampling), *notes),
            )
            runner = Runner(
                self._backend,
                info,
                machine,
                start=start,
                prompt=ids,
                slots=self._slots,
                clock=self._clock,
                began=began,
                deadline=deadline,
                emit=show,
                observer=observer,
            )
            observation.partial = runner.partial
            if watch:
                watch(runner.partial)
            return runner.run()

        return await run_restarting(attempt, emit, limits.retries)

    @asynccontextmanager
    async def _time_limit(self, limits: Limits) -> AsyncGenerator[None]:
        """For what comes before decoding."""
        if limits.timeout is None:
            yield
            return
        try:
            async with time_limit(self._clock, limits.timeout):
                yield
        except TimeoutError as error:
            if isinstance(error, PastaError):
                raise
            raise GenerationTimeoutError(
                f"connecting and encoding took longer than Limits.timeout = {limits.timeout:g} s"
            ) from error

    async def _encode(
        self, ids: list[int], messages: list[Message], dialect: Dialect, start: AnswerStart
    ) -> tuple[list[int], bool]:
        """Ids of the prompt, and whether it ends inside a thinking block, as some chat templates have it."""
        if ids:
            return ids, await self._ends_in_thinking(ids, start)
        if dialect == "text":
            messages = with_instructions(messages)
        kwargs = {**({"pasta": False} if start.baseline else {}), **start.chat_template_kwargs}
        ids = await with_retries(
            lambda: self._backend.encode_chat(messages, kwargs), start.limits.retries, self._clock
        )
        key = (json.dumps(kwargs, sort_keys=True), messages[-1]["role"])
        if key not in self._thinking:  # the template's end is the same for every prompt
            self._thinking[key] = await self._ends_in_thinking(ids, start)
        return ids, self._thinking[key]

    async def _ends_in_thinking(self, ids: list[int], start: AnswerStart) -> bool:
        tail = await with_retries(
            lambda: self._backend.detokenize(ids[-8:]), start.limits.retries, self._clock
        )
        return tail.rstrip().endswith(THINK_OPEN)


def _open(
    backend: object, settings: Settings, limits: Limits, options: BackendOptions
) -> tuple[Backend, bool]:
    """The backend, and whether it was opened here and so has to be closed here."""
    from pasta_async.backends import open_backend

    if backend is not None and not isinstance(backend, str | list | tuple):
        if not isinstance(backend, Backend):
            raise InvalidRequestError(f"a backend is named by a string, or is a Backend; got {backend!r}")
        if options:
            raise InvalidRequestError(f"{', '.join(options)}: options are for backends that are opened here")
        return backend, False
    listed: list[Any] = settings.backends
    if backend is not None:
        listed = [backend] if isinstance(backend, str) else [*cast("Sequence[object]", backend)]
    urls = [url for url in listed if isinstance(url, str)]
    if not urls or len(urls) < len(listed):
        raise InvalidRequestError(f"backends are named by strings, one at least; got {backend!r}")
    if all(url.startswith(("http:", "https:")) for url in urls):
        key = settings.api_key.get_secret_value() if settings.api_key else None
        options = {"api_key": key, "max_connections": limits.client_threads, **options}
    return open_backend(urls if len(urls) > 1 else urls[0], **options), True


def _cancelled_itself(start: AnswerStart) -> BackendProtocolError:
    error = BackendProtocolError("the backend cancelled a call by itself; nobody had asked for that")
    error.partial = Generation.empty(parallel=start.parallel)
    return error


def _dialect(info: ModelInfo, start: AnswerStart, *, can_instruct: bool) -> Dialect:
    """How the model's tags are read; `can_instruct` is whether a system message can explain them."""
    prompted = start.prompted
    if start.baseline or (prompted is None and info.tags is None and not can_instruct):
        return "plain"
    if prompted is False and info.tags is None:
        raise InvalidRequestError(
            f"{info.name} has no tag tokens in its vocabulary, so prompted=False cannot work; "
            "leave `prompted` out, or ask for baseline=True"
        )
    if prompted is None:
        prompted = info.tags is None
    return "text" if prompted else "ids"


def _notes(info: ModelInfo, sampling: Sampling) -> tuple[str, ...]:
    if sampling.seed is not None and sampling.temperature > 0 and not info.honours_seeds:
        return (f"{info.name}: this backend does not honour seeds, so the answer need not repeat",)
    return ()
