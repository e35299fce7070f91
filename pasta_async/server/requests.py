"""Requests of OpenAI's API as pydantic models, and the arguments of `Client.generate` for them.

Fields are those of OpenAI's reference, and a few of SGLang's. Fields of `Sampling` are not declared again:
they are read as options of the library. A request that sets a field of `_ENGINE_ONLY` goes to the engine's
own endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from pasta_async.errors import InvalidRequestError
from pasta_async.options import Limits, Options, Parallel, Sampling
from pasta_async.protocol import Message
from pasta_async.server.errors import ApiError, invalid_body
from pasta_async.server.service import Service
from pasta_async.server.settings import ServerSettings

_T = TypeVar("_T")
_Form = TypeVar("_Form", bound="_Body")
_Options = TypeVar("_Options", bound=Options)

_MAX_CHOICES = 16
"""Largest number of answers to one request: choices of all its prompts."""

MAX_MESSAGES = 2048
"""Largest number of messages, and of parts of a message; checked while they are read, so that a longer list
costs nothing."""

_IGNORED = {
    *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("modalities", "service_tier", "store", "verbosity", "prediction"),
    *("tool_choice", "parallel_tool_calls", "top_logprobs"),
}
"""Fields that change nothing in an answer; the last three do beside fields for the engine."""

_ENGINE_ONLY = (
    *("tools", "response_format", "logprobs", "logit_bias", "echo", "suffix"),
    *("frequency_penalty", "presence_penalty", "reasoning_effort"),
)
"""Fields that only an engine's own endpoint can honour."""

_Listed = Annotated[list[_T], Field(fail_fast=True)]
"""A list whose first bad item is the only one that is reported: there may be millions."""
_Short = Annotated[list[_T], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class _Body(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=()
    )


class PastaOptions(_Body):
    """`extra_body={"pasta": {...}}`: options that OpenAI's API does not have."""

    parallel: Parallel | None = None
    """Width of the answer; None: as the server's settings say."""
    baseline: bool | None = None
    """Answer without any tag, for comparison."""
    limits: dict[str, Any] | None = None
    """Fields of `Limits` for this answer; none may be above the server's own."""
    record: bool | None = None
    """Ask for the whole record: threads with their requests, written form."""
    events: bool | None = None
    """In a stream, ask for every event as it happens, in chunks without choices; those of fields too."""
    plan: bool | None = None
    """True if the fields of a `response_format` are written in parallel. None: they are if its schema has
    `x-pasta`."""


class NamedSchema(_Body, extra="ignore"):
    """OpenAI's wrapper around an object's JSON schema; its name and strictness change nothing."""

    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class PlanRequest(_Body):
    """`POST /v1/plans/check`."""

    json_schema: dict[str, Any] = Field(alias="schema")
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class StreamOptions(_Body, extra="ignore"):
    """Options of a stream; others change nothing."""

    include_usage: bool | None = None


class Part(_Body, extra="ignore"):
    """A part of a message's content: text, or something for the engine's own endpoint."""

    type: str
    text: str | None = None


class ChatMessage(_Body, extra="ignore"):
    """One message of a conversation. Unknown fields are ignored: clients send messages back as they came."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | _Short[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None

    @property
    def engine_only(self) -> str | None:
        """The first field or part that only the engine's own endpoint can read; None: it is text."""
        if self.role in ("tool", "function"):
            return "role"
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if part.type != "text" or part.text is None:
                return f"content.{index}"
        return "tool_calls" if self.tool_calls or self.function_call else None

    @property
    def as_message(self) -> Message:
        """The message as the library takes it, parts of text joined."""
        role = "system" if self.role == "developer" else self.role  # chat templates know this name
        text = self.content or ""
        if isinstance(text, list):
            text = "".join(part.text or "" for part in text)
        further = self.model_dump(include={"name", "reasoning_content"}, exclude_none=True)
        return {"role": role, "content": text, **further}


class GenerateRequest(_Body, extra="allow"):
    """Fields of both endpoints. Further ones are in `model_extra`, and are checked by `parse_body`."""

    default_tokens: ClassVar[int | None] = None
    """Token limit of an answer whose request sets none; None: the server's limit."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    pasta: PastaOptions | None = None

    @property
    def options(self) -> PastaOptions:
        """The options that OpenAI's API does not have."""
        return self.pasta or PastaOptions()

    @property
    def choices(self) -> int:
        """Number of answers for each prompt."""
        return self.n or 1

    @property
    def prompts(self) -> Sequence[str | list[int] | list[Message]]:
        """Prompts to answer, each with `choices` answers; texts and token ids have no chat template."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Number of answers over all prompts."""
        return len(self.prompts) * self.choices

    @property
    def token_limit(self) -> int | None:
        """Token limit of an answer, as the request sets it."""
        return self.max_tokens

    @property
    def engine_fields(self) -> list[str]:
        """The fields, and parts of messages, that only the engine's own endpoint can honour."""
        return [name for name in _ENGINE_ONLY if _asks_for(name, getattr(self, name, None))]


class ChatRequest(GenerateRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[_Short[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """SGLang's field for variables of the model's chat template."""
    tools: _Short[dict[str, Any]] | None = None
    response_format: ResponseFormat | None = None

    @property
    def schema_asked_for(self) -> dict[str, Any] | None:
        """The schema that the answer has to meet, if the request asks for an object."""
        named = self.response_format and self.response_format.json_schema
        return named.json_schema if named and self.engine_fields == ["response_format"] else None

    @property
    def prompts(self) -> Sequence[list[Message]]:
        """The one conversation."""
        return [[message.as_message for message in self.messages]]

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens`, or its older name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def engine_fields(self) -> list[str]:
        """The fields, and parts of messages, that only the engine's own endpoint can honour."""
        parts = ((index, message.engine_only) for index, message in enumerate(self.messages))
        return super().engine_fields + [f"messages.{index}.{field}" for index, field in parts if field]


class CompletionRequest(GenerateRequest):
    """`POST /v1/completions`."""

    default_tokens: ClassVar[int | None] = 16  # OpenAI's at this endpoint

    prompt: str | _Listed[int] | _Short[str] | _Short[_Listed[int]]

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Texts, or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [cast("list[int]", self.prompt)]
        return cast("list[str] | list[list[int]]", self.prompt)


def _asks_for(name: str, value: Any) -> bool:
    """True if the value of a field for the engine changes the reply."""
    if isinstance(value, ResponseFormat):
        return value.type != "text"
    # `logprobs=0` asks for those of the chosen tokens alone.
    return bool(value) or (name == "logprobs" and type(value) is int)


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """Read the body of a request. Cancelling it is safe.

    Raises:
        ApiError: Its content type is not JSON, or it is too large or too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A browser lets a page of another origin send these types only if the server allows it.
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(f"the content type must be application/json, not {kind or 'missing'!r}", 415)
    raw = bytearray()
    limit = settings.max_body_bytes
    try:
        with anyio.fail_after(settings.body_timeout):
            async for part in request.stream():
                raw += part
                if len(raw) > limit:
                    raise ApiError(f"the body has more than {limit} bytes", 413, code="request_too_large")
    except TimeoutError:
        raise ApiError(f"the body took longer than {settings.body_timeout:g} s", 408) from None
    except ClientDisconnect:
        raise ApiError("the client has gone", 499) from None
    return bytes(raw)


def parse_body(raw: bytes, form: type[_Form]) -> _Form:
    """Check the form of a body; an `ApiError` says what is wrong with it. Null fields count as absent."""
    try:
        body = form.model_validate_json(raw)
    except ValidationError as error:
        raise invalid_body(error) from None
    known_fields = {*_ENGINE_ONLY, *Sampling.model_fields, *_IGNORED}
    for field, value in (body.model_extra or {}).items():
        if value is not None and field not in known_fields:
            raise ApiError(f"Unknown parameter: '{field}'.", code="unknown_parameter", param=field)
    return body


def check_request(request: GenerateRequest, service: Service) -> None:
    """Refuse, by an `ApiError`, a request that neither the library nor the engine's endpoint can honour."""
    settings = service.settings
    names = service.model_names
    if request.model not in names:
        message = f"the model {request.model!r} does not exist here; there is {', '.join(names)}"
        raise ApiError(message, 404, code="model_not_found", param="model")
    if not request.prompts or not all(request.prompts):
        raise ApiError("the prompt is empty", param="prompt")
    if request.count > _MAX_CHOICES:
        raise ApiError(f"at most {_MAX_CHOICES} answers for a request", param="n")
    if settings.max_tokens and (request.token_limit or 0) > settings.max_tokens:
        raise ApiError(f"at most {settings.max_tokens} tokens for an answer", param="max_tokens")
    if request.max_tokens not in (None, request.token_limit):
        raise ApiError("max_tokens and max_completion_tokens differ; send one of them", param="max_tokens")
    is_random = sampling_of(request, settings).temperature > 0
    if request.seed is not None and is_random and not service.model.honours_seeds:
        message = (
            "this engine does not honour seeds (SGLang does with --enable-deterministic-inference); "
            "leave the seed out, or set temperature to 0"
        )
        raise ApiError(message, code="unsupported_parameter", param="seed")


def sampling_of(request: GenerateRequest, settings: ServerSettings) -> Sampling:
    """Sampling as the request says, or else the server. It has no seed: each choice has a seed of its own.

    Raises:
        ApiError: A value is bad.
    """
    extra = request.model_extra or {}
    values = {name: extra[name] for name in Sampling.model_fields if extra.get(name) is not None}
    if values.get("top_k") == -1:  # SGLang's word for all tokens
        del values["top_k"]
    top_p = values.get("top_p")
    if not isinstance(top_p, bool) and top_p == 0:  # OpenAI allows it: it keeps the likeliest token alone
        values["top_p"] = 1e-9
    default_tokens = min(filter(None, (request.default_tokens, settings.max_tokens)), default=None)
    if limit := request.token_limit or default_tokens:
        values["max_tokens"] = limit
    return _checked(Sampling, {"temperature": settings.temperature, **values})


def answer_limits(request: GenerateRequest, limits: Limits) -> Limits:
    """The limits of one answer.

    Raises:
        ApiError: A value is bad, or more than the server gives.
    """
    requested = request.options.limits or {}
    values = {name: value for name, value in requested.items() if value is not None}
    wanted = _checked(Limits, values, "pasta.limits.")
    for name in values:
        most = getattr(limits, name)
        if most is not None and getattr(wanted, name) > most:
            raise ApiError(f"{name} is at most {most} here", param=f"pasta.limits.{name}")
    return wanted.over(limits)


def _checked(kind: type[_Options], values: Mapping[str, Any], prefix: str = "") -> _Options:
    """Options made of a request's values; an `ApiError` names the first bad one."""
    # One value at a time, so that the error names the field.
    for name, value in values.items():
        try:
            # All options but `stop` are numbers, for which pydantic would also take texts and booleans.
            if isinstance(value, bool) or (name != "stop" and not isinstance(value, int | float)):
                raise InvalidRequestError(f"it needs to be a number, not {value!r:.40}")
            kind(**{name: value})
        except InvalidRequestError as error:
            param = f"{prefix}{name}"
            raise ApiError(f"Invalid '{param}': {error}", code="invalid_value", param=param) from None
    return kind(**values)
