"""What OpenAI's API is asked, as pydantic models, and what `Client.generate` is called with for it.

Fields are those of OpenAI's reference, and a few of SGLang's. A request that sets one that only an engine's
own endpoint can honour (`passed_on`) is passed through to it, as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import anyio
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from starlette.requests import Request

from pasta_async.options import MIN_PENALTY, Limits, Parallel, Sampling
from pasta_async.protocol import Message
from pasta_async.server.errors import ApiError, invalid_body
from pasta_async.server.service import Service
from pasta_async.server.settings import ServerSettings

_T = TypeVar("_T")
_Form = TypeVar("_Form", bound="GenerateRequest")

MAX_MESSAGES = 2048
"""Messages of a conversation, parts of a message; checked as they are read: a long list costs nothing."""

_IGNORED = {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
"""Fields that say nothing about the answer."""

_Stop = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]
_Listed = Annotated[list[_T], Field(fail_fast=True)]
"""A list whose first bad item is the only one that is reported: there may be millions."""
_Short = Annotated[list[_T], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class _Body(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class PastaOptions(_Body):
    """`extra_body={"pasta": {...}}`: options that OpenAI's API does not have."""

    parallel: Parallel | None = None
    """How parallel the answer may be; None: what the server's settings say."""
    baseline: bool = False
    """Answer without any tag, for comparison."""
    limits: Limits = Limits()
    """Limits of one answer; none may be above the server's own."""
    record: bool = False
    """Ask for the whole record: threads, timeline, written form."""
    events: bool = False
    """In a stream, ask for every event as it happens, in chunks without choices."""


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Part(BaseModel):
    """A part of a message's content: text; or an image, a sound, a refusal, for the engine's own endpoint."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    type: str
    text: str | None = None


class ChatMessage(_Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | _Short[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None

    @property
    def foreign(self) -> bool:
        """Whether it is for the engine's own endpoint: calls and results of tools, images, sound."""
        calls = self.role in ("tool", "function") or self.tool_calls or self.function_call
        parts = self.content if isinstance(self.content, list) else []
        return bool(calls) or any(part.type != "text" or part.text is None for part in parts)

    @property
    def as_message(self) -> Message:
        """The message as the library takes it, parts of text joined."""
        role = "system" if self.role == "developer" else self.role  # what chat templates know
        text = self.content or ""
        if isinstance(text, list):
            text = "".join(part.text or "" for part in text)
        more = self.model_dump(include={"name", "reasoning_content"}, exclude_none=True)
        return {"role": role, "content": text, **more}


class GenerateRequest(BaseModel):
    """What both endpoints take. Fields that are passed through or ignored are in tables, not declared."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True, protected_namespaces=())
    passed_on: ClassVar[dict[str, tuple[Any, ...]]] = {
        "frequency_penalty": (None, 0),
        "presence_penalty": (None, 0),
        "logit_bias": (None, {}),
        "regex": (None,),
        "ebnf": (None,),
    }
    """Fields that only an engine's own endpoint can honour, with the values that ask for nothing."""
    default_tokens: ClassVar[int | None] = None
    """Tokens that an answer may have where the request says nothing; None: as the server has it."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: _Count | None = None
    stop: _Stop | _Short[_Stop] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    top_k: int | None = None
    """SGLang's; -1 is all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_PENALTY, le=2)] | None = None
    """SGLang's too."""
    pasta: PastaOptions = PastaOptions()

    @property
    def choices(self) -> int:
        """Answers for each prompt."""
        return self.n or 1

    @property
    def prompts(self) -> Sequence[str | list[int] | list[Message]]:
        """What is to be answered, each with as many choices: texts and token ids have no chat template."""
        raise NotImplementedError

    @property
    def token_limit(self) -> int | None:
        """Tokens that an answer may have, as was asked for."""
        return self.max_tokens

    @property
    def engine_only(self) -> tuple[str, ...]:
        """Fields that ask for what only the engine's own endpoint does."""
        return tuple(
            name for name, nothing in self.passed_on.items() if getattr(self, name, None) not in nothing
        )


class ChatRequest(GenerateRequest):
    """`POST /v1/chat/completions`."""

    passed_on: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerateRequest.passed_on,
        "tools": (None, []),
        "tool_choice": (None, "auto", "none"),
        "parallel_tool_calls": (None, True, False),
        "response_format": (None, {"type": "text"}),
        "functions": (None, []),
        "function_call": (None, "auto", "none"),
        "reasoning_effort": (None,),
        "verbosity": (None,),
        "prediction": (None,),
        "web_search_options": (None,),
        "audio": (None,),
        "logprobs": (None, False),
        "top_logprobs": (None, 0),
    }

    messages: Annotated[_Short[ChatMessage], Field(min_length=1)]
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """SGLang's: for the model's chat template."""
    tools: _Short[dict[str, Any]] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @property
    def prompts(self) -> Sequence[list[Message]]:
        """The one conversation."""
        return [[message.as_message for message in self.messages]]

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens`, or what it was called before."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def engine_only(self) -> tuple[str, ...]:
        """As for every request, and `messages` if one of them holds such things."""
        foreign = any(message.foreign for message in self.messages)
        return (*super().engine_only, *(["messages"] if foreign else []))


class CompletionRequest(GenerateRequest):
    """`POST /v1/completions`."""

    passed_on: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerateRequest.passed_on,
        "echo": (None, False),
        "suffix": (None, ""),
        "logprobs": (None,),  # 0 asks for those of the chosen tokens
    }
    default_tokens: ClassVar[int | None] = 16  # OpenAI's at this endpoint

    prompt: str | _Listed[StrictInt] | _Short[str] | _Short[_Listed[StrictInt]]
    best_of: int | None = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Texts, or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [cast("list[int]", self.prompt)]
        return cast("list[str] | list[list[int]]", self.prompt)


async def read_body(request: Request, form: type[_Form], settings: ServerSettings) -> _Form:
    """Read and check a body. Cancelling it is safe.

    Raises:
        ApiError: It is no JSON, not in that form, too large or too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a page of another origin may not send unasked
        raise ApiError(f"the content type must be application/json, not {kind or 'missing'!r}", 415)
    raw, most = bytearray(), settings.max_body_bytes
    try:
        with anyio.fail_after(settings.body_timeout):
            async for part in request.stream():
                raw += part
                if len(raw) > most:
                    raise ApiError(f"the body has more than {most} bytes", 413, code="request_too_large")
    except TimeoutError:
        raise ApiError(f"the body took longer than {settings.body_timeout:g} s", 408) from None
    return parse_body(raw, form)


def parse_body(raw: bytes | bytearray, form: type[_Form]) -> _Form:
    """Check a body; an `ApiError` says what is wrong with it."""
    try:
        body = form.model_validate_json(raw)
    except ValidationError as error:
        raise invalid_body(error) from None
    for field in body.model_extra or ():
        if field not in body.passed_on.keys() | _IGNORED:
            raise ApiError(f"Unknown parameter: '{field}'.", code="unknown_parameter", param=field)
    return body


def check_request(request: GenerateRequest, service: Service) -> None:
    """Refuse with an `ApiError` what no way of answering could honour."""
    settings, names = service.settings, service.model_names
    if request.model not in names:
        message = f"the model {request.model!r} does not exist here; there is {', '.join(names)}"
        raise ApiError(message, 404, code="model_not_found", param="model")
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options is only allowed when stream is set", param="stream_options")
    if isinstance(request, CompletionRequest):
        if not request.prompts or not all(request.prompts):
            raise ApiError("the prompt is empty", param="prompt")
        if request.best_of not in (None, request.choices):
            message = "best_of is not supported: it must equal n"
            raise ApiError(message, code="unsupported_parameter", param="best_of")
    if (count := len(request.prompts) * request.choices) > settings.max_choices:
        raise ApiError(f"at most {settings.max_choices} answers for a request, not {count}", param="n")
    if settings.max_tokens and (request.token_limit or 0) > settings.max_tokens:
        raise ApiError(f"at most {settings.max_tokens} tokens for an answer", param="max_tokens")
    if isinstance(request, ChatRequest) and request.max_tokens and request.max_completion_tokens:
        raise ApiError("max_tokens and max_completion_tokens exclude each other", param="max_tokens")
    drawn = sampling_values(request, settings)["temperature"] > 0
    if request.seed is not None and drawn and not service.info.honours_seeds:
        message = (
            "this engine does not honour seeds (SGLang does with --enable-deterministic-inference); "
            "leave the seed out, or set temperature to 0"
        )
        raise ApiError(message, code="unsupported_parameter", param="seed")


def generate_kwargs(request: GenerateRequest, service: Service) -> list[dict[str, Any]]:
    """For each choice of a prompt the arguments of `Client.generate`, without the prompt.

    Raises:
        ApiError: More is asked for than the server gives.
        InvalidRequestError: A value is out of range.
    """
    options = request.pasta
    kwargs: dict[str, Any] = {
        "limits": answer_limits(options.limits, service.limits),
        "baseline": options.baseline,
        "parallel": options.parallel or service.settings.parallel,
        "sampling": Sampling(**sampling_values(request, service.settings)),
    }
    if isinstance(request, ChatRequest):
        kwargs["chat_template_kwargs"] = request.chat_template_kwargs
    if request.seed is None:
        return [kwargs] * request.choices
    return [{**kwargs, "seed": (request.seed + index) % 2**63} for index in range(request.choices)]


def sampling_values(request: GenerateRequest, settings: ServerSettings) -> dict[str, Any]:
    """What the request, or else the server, says about sampling, by its name in OpenAI's API."""
    default = min(filter(None, (request.default_tokens, settings.max_tokens)), default=None)
    values: dict[str, Any] = {
        "temperature": settings.temperature if request.temperature is None else request.temperature,
        "top_p": None if request.top_p is None else max(request.top_p, 1e-9),  # 0 is the likeliest token
        "top_k": None if request.top_k == -1 else request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "stop": request.stop,
        "max_tokens": request.token_limit or default,
    }
    return {name: value for name, value in values.items() if value is not None}


def answer_limits(wanted: Limits, own: Limits) -> Limits:
    """The limits of one answer; an `ApiError` if more is asked for than the server gives."""
    values = wanted.model_dump(exclude_unset=True, exclude_none=True)
    for name in values.keys() - {"on_failure"}:
        most = getattr(own, name)
        if most is not None and values[name] > most:
            raise ApiError(f"at most {most:g}, not {values[name]:g}", param=f"pasta.limits.{name}")
    return own.model_copy(update=values)
