"""What users call: `generate`, `stream`, `Client`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

import anyio
from pydantic import TypeAdapter, ValidationError

from pasta_async.clock import REAL_CLOCK, time_limit
from pasta_async.errors import GenerationTimeoutError, InvalidRequestError, PastaError, PromptTooLongError
from pasta_async.interpreter import (
    THINK_OPEN,
    Machine,
    PrioritySemaphore,
    Runner,
    run_restarting,
    with_retries,
)
from pasta_async.observers import AnswerStart, Observation
from pasta_async.prompting import with_instructions
from pasta_async.protocol import Message
from pasta_async.sampling import Sampling
from pasta_async.streaming import AnswerStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from pasta_async.clock import Clock
    from pasta_async.interpreter import Dialect, Fork
    from pasta_async.limits import Limits
    from pasta_async.observers import Observer
    from pasta_async.protocol import Backend, ModelInfo
    from pasta_async.results import Generation
    from pasta_async.settings import Settings
    from pasta_async.streaming import Emit, Watch

    Prompt = str | Sequence[Message] | Sequence[int]

__all__ = ["Client", "generate", "stream"]

_MESSAGES = TypeAdapter(list[Message])


@dataclass(frozen=True)
class _Question:
    """What `generate` and `stream` are asked."""

    prompt: Prompt
    sampling: Sampling | None
    limits: Limits | None
    prompted: bool | None
    baseline: bool
    parallel: bool
    fork: Fork
    kwargs: Mapping[str, Any]
    whole_chunks: bool = False


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
        options: Passed to the backend that is opened, an `api_key` for instance.
    """

    def __init__(
        self,
        backend: str | Sequence[str] | Backend | None = None,
        *,
        limits: Limits | None = None,
        clock: Clock = REAL_CLOCK,
        observers: Sequence[Observer] = (),
        **options: Any,
    ) -> None:
        from pasta_async.settings import Settings

        settings = Settings()
        self.limits: Limits = limits.over(settings.limits) if limits else settings.limits
        self._clock = clock
        self.observers: list[Observer] = list(observers)
        """Told of the answers that begin from now on."""
        named = backend or settings.backends
        self._owned = isinstance(named, str | Sequence)
        self._backend = (
            _open(named, settings, self.limits, options) if isinstance(named, str | Sequence) else named
        )
        self._slots = PrioritySemaphore(self.limits.client_threads)
        self._connecting = anyio.Lock()
        self._info: ModelInfo | None = None

    async def __aenter__(self) -> Self:
        """Open the client. The backend is reached, or loaded, by the first answer or by `connect`."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the client."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the backend, unless it was passed in as an object. Cancelling it may leave it half closed."""
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
        """
        async with self._connecting:
            if self._info is None:
                self._info = await with_retries(self._backend.connect, self.limits.retries, self._clock)
        return self._info

    async def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
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
            sampling: Greedy unless given.
            limits: For this answer; the client's unless given (`client_threads` is always the client's).
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
            ThreadFailedError: A thread failed. `partial` is the answer so far, as on every error.
            GenerationTimeoutError: The time was up.
            BackendError: The backend cannot be used.

        Cancelling it ends every thread and aborts every request before the cancellation goes on.
        """
        kwargs = chat_template_kwargs or {}
        return await self._answer(
            _Question(prompt, sampling, limits, prompted, baseline, parallel, fork, kwargs, whole_chunks)
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        prompted: bool | None = None,
        baseline: bool = False,
        parallel: bool = True,
        fork: Fork = "stream",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AnswerStream:
        """The same as `generate`, watched: `async with client.stream(...) as s: async for event in s: ...`.

        Leaving the block ends every thread and aborts every request that is still open.
        """
        kwargs = chat_template_kwargs or {}
        question = _Question(prompt, sampling, limits, prompted, baseline, parallel, fork, kwargs)

        async def run(emit: Emit, watch: Watch) -> Generation:
            return await self._answer(question, emit, watch)

        return AnswerStream(run)

    async def _answer(
        self, question: _Question, emit: Emit | None = None, watch: Watch | None = None
    ) -> Generation:
        start = AnswerStart(
            answer=uuid4().hex,
            prompt=question.prompt,
            sampling=question.sampling or Sampling(),
            limits=question.limits.over(self.limits) if question.limits else self.limits,
            parallel=question.parallel,
            baseline=question.baseline,
            streamed=emit is not None,
        )
        with Observation(tuple(self.observers), start) as observation:
            observation.generation = await self._decode(question, start, observation, emit, watch)
            return observation.generation

    async def _decode(
        self,
        question: _Question,
        start: AnswerStart,
        observation: Observation,
        emit: Emit | None,
        watch: Watch | None,
    ) -> Generation:
        ids = _ids(question.prompt)
        messages = [] if ids else _messages(question.prompt)
        if question.fork not in ("stream", "cut"):
            raise InvalidRequestError(f'fork is "stream" or "cut"; got {question.fork!r}')
        sampling, limits = start.sampling, start.limits
        deadline = None if limits.timeout is None else self._clock.time() + limits.timeout
        async with self._time_limit(limits):
            info = await self.connect()
            observer = observation.begin(info)
            began = self._clock.time()
            dialect = _dialect(info, question.prompted, baseline=question.baseline, told=not ids)
            ids, thinking = await self._encode(ids, messages, dialect, question, limits)
        _check_length(ids, info, limits)

        def attempt(show: Emit | None, notes: tuple[str, ...]) -> Runner:
            machine = Machine(
                info,
                dialect,
                limits,
                max_tokens=sampling.max_tokens,
                stop=sampling.stop,
                fork=question.fork,
                thinking=thinking,
                listen=show is not None,
                notes=(*_notes(info, sampling), *notes),
            )
            runner = Runner(
                self._backend,
                machine,
                prompt=ids,
                answer=start.answer,
                info=info,
                sampling=sampling,
                limits=limits,
                slots=self._slots,
                clock=self._clock,
                began=began,
                deadline=deadline,
                emit=show,
                observer=observer,
                parallel=question.parallel,
                whole_chunks=question.whole_chunks,
            )
            observation.partial = runner.partial
            if watch:
                watch(runner.partial)
            return runner

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
        self, ids: list[int], messages: list[Message], dialect: Dialect, question: _Question, limits: Limits
    ) -> tuple[list[int], bool]:
        """Ids of the prompt, and whether it ends inside a thinking block, as some chat templates have it."""
        if not ids:
            if dialect == "text":
                messages = with_instructions(messages)
            kwargs = {**({"pasta": False} if question.baseline else {}), **question.kwargs}
            ids = await with_retries(
                lambda: self._backend.encode_chat(messages, kwargs), limits.retries, self._clock
            )
        tail = await with_retries(lambda: self._backend.detokenize(ids[-8:]), limits.retries, self._clock)
        return ids, tail.rstrip().endswith(THINK_OPEN)


async def generate(
    prompt: Prompt, *, backend: str | Sequence[str] | Backend | None = None, **options: Any
) -> Generation:
    """Answer one prompt on a client of its own; for more than one, keep a `Client`.

    Args:
        prompt: A text, chat messages, or token ids.
        backend: As for `Client`.
        options: As for `Client.generate`.

    Raises and is cancelled as `Client.generate`.
    """
    async with Client(backend) as client:
        return await client.generate(prompt, **options)


@asynccontextmanager
async def stream(
    prompt: Prompt, *, backend: str | Sequence[str] | Backend | None = None, **options: Any
) -> AsyncGenerator[AnswerStream]:
    """Watch one answer on a client of its own: `async with pasta_async.stream(...) as s`.

    Args:
        prompt: A text, chat messages, or token ids.
        backend: As for `Client`.
        options: As for `Client.stream`.
    """
    async with Client(backend) as client, client.stream(prompt, **options) as answer:
        yield answer


def _open(url: str | Sequence[str], settings: Settings, limits: Limits, options: dict[str, Any]) -> Backend:
    from pasta_async.backends import open_backend

    urls = [url] if isinstance(url, str) else url
    if all(one.startswith(("http:", "https:")) for one in urls):
        key = settings.api_key.get_secret_value() if settings.api_key else None
        options = {"api_key": key, "max_connections": limits.client_threads, **options}
    return open_backend(urls if len(urls) > 1 else urls[0], **options)


def _ids(prompt: Prompt) -> list[int]:
    """The prompt's token ids, if that is what it is made of."""
    if not isinstance(prompt, list | tuple) or not all(isinstance(item, int) for item in prompt):
        return []
    return [*cast("Sequence[int]", prompt)]


def _messages(prompt: Prompt) -> list[Message]:
    """The prompt as messages, checked."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    try:
        messages = _MESSAGES.validate_python(prompt)
    except ValidationError as error:
        raise InvalidRequestError(
            "the prompt is a text, or a list of messages with a role and a content, or ids: "
            + "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}" for e in error.errors())
        ) from error
    if not messages:
        raise InvalidRequestError("the prompt has no message")
    for index, message in enumerate(messages):
        if not {"role", "content"} <= message.keys():
            raise InvalidRequestError(f"message {index} needs a role and a content; got {message!r}")
        if not isinstance(message["role"], str) or not isinstance(message["content"], str | list | None):
            raise InvalidRequestError(f"message {index}: the role is a text, the content text or parts")
    if not any(str(message["content"] or "").strip() for message in messages):
        raise InvalidRequestError("the prompt is empty")
    return messages


def _dialect(info: ModelInfo, prompted: bool | None, *, baseline: bool, told: bool) -> Dialect:
    """How the model's tags are read; `told` is whether a system message can explain them."""
    if baseline or (prompted is None and info.tags is None and not told):
        return "plain"
    if prompted is False and info.tags is None:
        raise InvalidRequestError(
            f"{info.name} has no tag tokens in its vocabulary, so prompted=False cannot work; "
            "leave `prompted` out, or ask for baseline=True"
        )
    if prompted is None:
        prompted = info.tags is None
    return "text" if prompted else "ids"


def _check_length(ids: Sequence[int], info: ModelInfo, limits: Limits) -> None:
    if len(ids) >= info.context_length:
        raise PromptTooLongError(
            f"the prompt has {len(ids)} tokens, and {info.name} takes {info.context_length} with the answer"
        )
    if limits.prompt_tokens is not None and len(ids) > limits.prompt_tokens:
        raise PromptTooLongError(
            f"the prompt has {len(ids)} tokens; at most {limits.prompt_tokens} are allowed"
        )


def _notes(info: ModelInfo, sampling: Sampling) -> tuple[str, ...]:
    if sampling.seed is not None and sampling.temperature > 0 and not info.honours_seeds:
        return (f"{info.name}: this backend does not honour seeds, so the answer need not repeat",)
    return ()
