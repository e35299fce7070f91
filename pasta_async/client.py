"""The client: one backend, many answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, Unpack
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar  # that of `typing` has defaults from Python 3.13 on

from pasta_async.backends import BackendOptions, open_backend
from pasta_async.clock import REAL_CLOCK, Clock, time_limit
from pasta_async.errors import InvalidRequestError, InvalidStateError, PastaError
from pasta_async.events import Emit, Event, emit_last
from pasta_async.interpreter.admission import Admission, AnswerSlots
from pasta_async.interpreter.runner import Prepared, Runner, with_retries
from pasta_async.observers import AnswerStart, Observation, Observer
from pasta_async.options import AnswerOptions, FillOptions, Limits, Sampling, Settings
from pasta_async.plans.checks import InvalidPlanError, PlanReport, check_plan
from pasta_async.plans.events import FillDone, Filled, FillEvent, ValidationFailedError
from pasta_async.plans.parts import Layout
from pasta_async.plans.plan import Plan, PlanForm
from pasta_async.plans.run import FillStream, PlanRun
from pasta_async.plans.schema import Schema
from pasta_async.prompts import Prompt, check_ids, check_json, check_length, most_tokens, read_prompt
from pasta_async.protocol import Backend, Message, Model
from pasta_async.results import Generation
from pasta_async.streaming import AnswerStream
from pasta_async.tokenizer import run_encoding, texts_in

_M = TypeVar("_M", bound=BaseModel | dict[str, Any], default=dict[str, Any])
"""The type of a plan's value: the pydantic model that it is made of, else a dict."""

_PLAIN: dict[str, Any] = {"pasta": False}
"""The switch in the chat template of a model that was trained on both forms: no tags."""


class Client:
    """One backend, one connection pool and one set of limits over many answers.

    Use it as `async with Client(...) as client`, within one event loop.

    Args:
        backend: `local:`, `local:qwen-1.5b`, `local:/path`, `http://host:30000` (SGLang),
            `vllm:http://host:8000`, `sglang:/path` (one started here); or a `Backend`, which is then not
            closed here. None: `PASTA_BACKEND`, or `local:`.
        limits: Fields that are not set come from the environment (`PASTA_TIMEOUT`), or are the defaults.
        clock: Measures time-outs; tests pass a `VirtualClock`.
        observers: Observers of its answers: `pasta_async.telemetry` has metrics, traces and logs.
        options: Options of the backend that is opened: `api_key`, `tokenizer`, `device` and so on.

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
        settings = Settings()
        self.limits: Limits = Limits.of(limits).over(settings.limits)
        self._clock = clock
        self.observers: list[Observer] = list(observers)
        """Observers of the answers that begin from now on."""
        self.backend: Backend
        """The source of its tokens."""
        self.backend, self._owned = _open(backend, settings, options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admission = Admission(self.limits.client_threads, self.backend.load)
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
            await self.backend.aclose()

    async def connect(self) -> Model:
        """Reach or load the model now rather than with the first answer. Cancelling it is safe.

        Raises:
            BackendError: The backend cannot be used; the message says what to do.
            InvalidStateError: The client was closed, or another event loop uses it.
        """
        self._check_loop()
        return await with_retries(self.backend.connect, self.limits.retries, self._clock)

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text without a chat template, behind what its tokenizer puts in front of each.

        They are a prompt for several answers, which is encoded once.

        Raises:
            InvalidRequestError: It is no valid Unicode, or longer than the model or the limits take.
            GenerationTimeoutError: It took longer than `Limits.timeout`.
            BackendError: The backend cannot be used.

        Cancelling it is safe.
        """
        limits = self.limits
        async with time_limit(self._clock, self._deadline(limits), "connecting and encoding"):
            model = await self.connect()
            encode = partial(model.tokenizer.encode, text, most_tokens(model, limits))
            ids = [*model.tokenizer.opening, *await run_encoding(len(text), encode)]
        check_length(ids, model, limits)
        return ids

    def _deadline(self, limits: Limits) -> float | None:
        """The clock's time at which an answer that begins now has to be done."""
        return None if limits.timeout is None else self._clock.time() + limits.timeout

    def _check_loop(self) -> None:
        """Refuse to work when closed, or for two event loops at once. One loop may follow another."""
        if self._closed:
            raise InvalidStateError("this client was closed; make another one")
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and self._loop.is_running():
            raise InvalidStateError("this client is used by another event loop; make one for each")
        self._loop = loop

    async def generate(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Generation:
        """Answer a prompt, decoding in parallel what the model marks as independent.

        Args:
            prompt: A text, or chat messages: tags in them are data, never commands. Or token ids, which are
                taken as they are, without a chat template.
            options: Options of the answer: `pasta_async.AnswerOptions` describes them.

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
        return await self._answer(self._observed(prompt, options, streamed=False))

    def stream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """Watch an answer: `async with client.stream(...) as s: async for event in s: ...`.

        Args and errors are those of `generate`; bad values are refused by this call, the rest comes from the
        stream. Leaving the block ends every thread and aborts every request that is still open.
        """
        observation = self._observed(prompt, options, streamed=True)
        return AnswerStream(partial(self._answer, observation), observation)

    def _observed(
        self, prompt: Prompt, options: AnswerOptions | FillOptions, *, streamed: bool, is_plan: bool = False
    ) -> Observation:
        """An answer or plan before it begins: its options, all checked but the prompt, and its observers."""
        given: dict[str, Any] = {**options}
        allowed = FillOptions if is_plan else AnswerOptions
        if unknown := sorted(given.keys() - allowed.__optional_keys__):
            raise InvalidRequestError(f"there is no option {unknown[0]!r}; see {allowed.__name__}")
        sampling = Sampling.of(given.pop("sampling", None)).model_dump(exclude_unset=True)
        direct = {name: given.pop(name, None) for name in Sampling.model_fields}
        sampling |= {name: value for name, value in direct.items() if value is not None}
        limits = Limits.of(given.pop("limits", None))
        kwargs = given.pop("chat_template_kwargs", None)
        check_json(kwargs, "chat_template_kwargs")
        start = AnswerStart(
            answer=uuid4().hex,
            prompt=prompt,
            streamed=streamed,
            sampling=Sampling(**sampling),
            limits=limits.over(self.limits),
            chat_template_kwargs={} if kwargs is None else kwargs,
            **given,
        )
        return Observation(tuple(self.observers), start)

    async def fill(
        self,
        prompt: Prompt,
        form: type[_M] | Schema | Plan,
        *,
        instruct: bool = True,
        **options: Unpack[FillOptions],
    ) -> Filled[_M]:
        """Fill a form with any model, writing at once what the form says is independent (docs/plans.md).

        Args:
            prompt: The prompt, as for `generate`.
            form: A pydantic model, the JSON schema of an object, or a `Plan`. `After` and `Together`
                say which fields see which others, `Tokens` how long they may be.
            instruct: Add a sentence with the form to the last user message. Not for a prompt of ids.
            options: Options of the run: `pasta_async.FillOptions` describes them.

        Raises:
            InvalidPlanError: `check` says no; nothing was sent.
            ValidationFailedError: The pydantic model's validators refuse the object, which `filled` has.
            PastaError: As for `generate`; `partial` is the answer so far.

        Cancelling it ends every hole and aborts every request before the cancellation goes on.
        """
        work, _ = self._filling(prompt, form, instruct, options, streamed=False)
        return await work(None)

    def fill_stream(
        self,
        prompt: Prompt,
        form: type[_M] | Schema | Plan,
        *,
        instruct: bool = True,
        **options: Unpack[FillOptions],
    ) -> FillStream[_M]:
        """Watch a form being filled: `async with client.fill_stream(...) as s: async for event in s: ...`.

        Args and errors are those of `fill`. Leaving the block ends every hole and aborts every request.
        """
        work, observation = self._filling(prompt, form, instruct, options, streamed=True)
        return FillStream(work, observation)

    async def check(self, form: PlanForm, *, max_tokens: int | None = None) -> PlanReport:
        """Say beforehand whether a plan can be kept on this backend, and how many tokens it takes at most.

        Raises:
            InvalidRequestError: The form is no plan, and none can be made of it.
            BackendError: The backend cannot be used.

        Cancelling it is safe.
        """
        model = await self.connect()
        return (await _checked(Plan.of(form), model, self.limits, max_tokens, prompt=1))[1]

    def _filling(
        self, prompt: Prompt, form: Any, instruct: bool, options: FillOptions, *, streamed: bool
    ) -> tuple[Callable[[Emit[FillEvent] | None], Coroutine[Any, Any, Filled[Any]]], Observation]:
        """The work of filling a form, all its options checked but the prompt, and its observers."""
        plan = Plan.of(form)
        asked = _instructed(prompt, plan) if instruct else prompt
        observation = self._observed(asked, options, streamed=streamed, is_plan=True)
        sampling = observation.start.sampling
        if sampling.stop:
            raise InvalidRequestError("a plan takes no stop texts: its fields end by their form")
        most = sampling.max_tokens if "max_tokens" in sampling.model_fields_set else None

        async def work(emit: Emit[FillEvent] | None) -> Filled[Any]:
            async with self._prepared(observation, plan) as prepared:
                limits = prepared.start.limits
                async with time_limit(prepared.clock, prepared.deadline, "checking the plan"):
                    fitted, report = await _checked(plan, prepared.model, limits, most, len(prepared.prompt))
                if report.verdict == "no":
                    raise InvalidPlanError(report)
                run = PlanRun(prepared, fitted, emit)
                observation.run = run
                filled = await run.run()
                observation.generation = filled.generation
            if isinstance(form, type):
                filled = _validated(filled, form)
            emit_last(emit, [FillDone(filled)])
            return filled

        return work, observation

    async def _answer(self, observation: Observation, emit: Emit[Event] | None = None) -> Generation:
        """Prepare an answer, then run it."""
        async with self._prepared(observation) as prepared:
            runner = Runner(prepared, emit)
            observation.run = runner
            observation.generation = await runner.run()
            return observation.generation

    @asynccontextmanager
    async def _prepared(self, observation: Observation, plan: Plan | None = None) -> AsyncGenerator[Prepared]:
        """An answer, or a plan, that is ready to be decoded, while its observers watch.

        An error has at least an empty `partial`.
        """
        # The load limits neither the width of a plan nor of an answer that asks for a width.
        limited = plan is None and observation.start.parallel in ("auto", "outline")
        try:
            with observation:
                self._check_loop()
                with self._admission.answer(limited=limited) as slots:
                    yield await self._prepare(observation, slots, plan)
        except PastaError as error:
            if error.partial is None:
                error.partial = Generation.empty()
            raise

    async def _prepare(self, observation: Observation, slots: AnswerSlots, plan: Plan | None) -> Prepared:
        """Reach the model, encode the prompt, and decide whether tags are used."""
        start = observation.start
        limits = start.limits
        messages, ids = read_prompt(start.prompt)
        deadline = self._deadline(limits)
        async with time_limit(self._clock, deadline, "connecting and encoding"):
            model = await with_retries(self.backend.connect, limits.retries, self._clock)
            observation.begin(model)
            began = self._clock.time()
            # A plan has tags if it can be written with them, whatever the load.
            is_plain = start.baseline if plan is None else plan.tagged() is None
            tags = None if is_plain else model.tags
            notes = _notes(model, start, plan)
            check_ids(ids, model.vocab_size)
            if messages:
                ids = await _encode(messages, model, start, plain=tags is None)
            # A seed promises that the answer repeats, so its form does not depend on the load.
            if (
                tags
                and messages
                and plan is None
                and start.sampling.seed is None
                and (reason := await self._admission.reason_for_no_tags(slots))
            ):
                plain_ids = await _encode(messages, model, start, plain=True)
                # Where they are equal, the chat template has no such switch: tags would be written anyway.
                if plain_ids != ids:
                    ids = plain_ids
                    tags = None
                    notes = (*notes, f"answered without tags: {reason}")
        check_length(ids, model, limits)
        return Prepared(
            backend=self.backend,
            clock=self._clock,
            start=start,
            observer=observation,
            slots=slots,
            thread_limit=asyncio.Semaphore(1 if start.parallel == "never" else limits.max_threads),
            model=model,
            prompt=tuple(ids),
            tags=tags,
            notes=notes,
            began=began,
            deadline=deadline,
        )


async def _encode(messages: Sequence[Message], model: Model, start: AnswerStart, *, plain: bool) -> list[int]:
    """Ids of a chat; `plain` asks the model for an answer without tags."""
    kwargs = {**(_PLAIN if plain else {}), **start.chat_template_kwargs}
    size = sum(len(text) + 1 for text in texts_in((messages, kwargs)))  # empty ones are work, too
    most = most_tokens(model, start.limits)
    return await run_encoding(size, partial(model.tokenizer.encode_chat, messages, kwargs, most))


async def _checked(
    plan: Plan, model: Model, limits: Limits, max_tokens: int | None, prompt: int
) -> tuple[Plan, PlanReport]:
    """A plan within a token limit, and the check of it for a model, behind a prompt of so many tokens.

    Cancelling it is safe.
    """
    check = partial(_check, plan, model, limits, max_tokens, prompt)
    return await run_encoding(plan.schema_characters, check)


def _check(
    plan: Plan, model: Model, limits: Limits, max_tokens: int | None, prompt: int
) -> tuple[Plan, PlanReport]:
    """See `_checked`. A template has tags where the model was trained on them."""
    room = model.context_length - prompt
    plan = plan.cut_off(room)
    layout = Layout(plan, model.grammars)
    key_tokens = {hole.name: len(model.tokenizer.encode(layout.key_text(hole))) for hole in plan.holes}
    if max_tokens is not None and max_tokens < 1:
        raise InvalidRequestError(f"max_tokens must be at least 1, not {max_tokens}")
    max_tokens = min(filter(None, (max_tokens, limits.total_tokens)), default=None)
    fitted = plan.with_keys(key_tokens).fitted(max_tokens)
    tagged = fitted.tagged() if model.tags else None  # None, too, where the template has no such form
    fitted = tagged or fitted
    report = check_plan(
        fitted,
        max_tokens=max_tokens,
        max_threads=limits.max_threads,
        context=room,
        grammars=model.grammars,
        schema_refusal=model.schema_refusal,
    )
    return fitted, report


def _instructed(prompt: Prompt, plan: Plan) -> Prompt:
    """A prompt whose last user message says the plan's form; ids are left as they are."""
    messages, ids = read_prompt(prompt)
    if ids:
        return prompt
    *before, last = messages
    if last["role"] != "user" or not isinstance(last["content"], str):
        return [*messages, {"role": "user", "content": plan.instruction()}]
    return [*before, {**last, "content": f"{last['content']}\n\n{plan.instruction()}"}]


def _validated(filled: Filled[dict[str, Any]], form: type[BaseModel]) -> Filled[Any]:
    """The result with the pydantic model's instance."""
    try:
        value = form.model_validate_json(filled.text)
    except ValidationError as error:
        message = f"{form.__name__} refuses what was written: {error}"
        raise ValidationFailedError(message, filled=filled) from error
    return Filled(value=value, text=filled.text, truncated=filled.truncated, generation=filled.generation)


def _open(backend: object, settings: Settings, options: BackendOptions) -> tuple[Backend, bool]:
    """The backend, and True if it was opened here and so has to be closed here."""
    if backend is not None and not isinstance(backend, str):
        if not isinstance(backend, Backend):
            raise InvalidRequestError(f"a backend is named by a string, or is a Backend; got {backend!r}")
        if options:
            raise InvalidRequestError(f"{', '.join(options)}: options are for backends that are opened here")
        return backend, False
    url = settings.backend if backend is None else backend
    if url.startswith(("http:", "https:", "vllm:")):
        key = settings.api_key.get_secret_value() if settings.api_key else None
        options = {"api_key": key, "tokenizer": settings.tokenizer, **options}
    return open_backend(url, **options), True


def _notes(model: Model, start: AnswerStart, plan: Plan | None) -> tuple[str, ...]:
    """Remarks on an answer: those of the backend, and the options that it cannot honour."""
    notes = model.notes
    sampling = start.sampling
    if plan is None and model.tags is None and not start.baseline and start.parallel != "outline":
        notes = (*notes, f"{model.name} has no tag tokens, so it answers in sequence")
    if sampling.seed is not None and sampling.temperature > 0 and not model.honours_seeds:
        notes = (*notes, f"{model.name}: this backend does not honour seeds, so the answer need not repeat")
    return notes


async def generate(
    prompt: Prompt,
    *,
    backend: str | Backend | None = None,
    **options: Unpack[AnswerOptions],
) -> Generation:
    """Answer one prompt on a client of its own; for more than one, keep a `Client`.

    `backend` is for the client, the others for `Client.generate`, which describes them, the errors, and what
    cancelling does.
    """
    async with Client(backend) as client:
        return await client.generate(prompt, **options)


async def fill(
    prompt: Prompt,
    form: type[_M] | Schema | Plan,
    *,
    backend: str | Backend | None = None,
    instruct: bool = True,
    **options: Unpack[FillOptions],
) -> Filled[_M]:
    """Fill one form on a client of its own; for more than one, keep a `Client`.

    `backend` is for the client, the others for `Client.fill`, which describes them, the errors, and what
    cancelling does.
    """
    async with Client(backend) as client:
        return await client.fill(prompt, form, instruct=instruct, **options)


@asynccontextmanager
async def stream(
    prompt: Prompt,
    *,
    backend: str | Backend | None = None,
    **options: Unpack[AnswerOptions],
) -> AsyncGenerator[AnswerStream]:
    """Watch one answer on a client of its own: `async with pasta_async.stream(...) as s`.

    `generate` describes the arguments. Leaving the block ends the answer with all its requests.
    """
    async with Client(backend) as client, client.stream(prompt, **options) as answer:
        yield answer
