"""From a request to what `Client.generate` is called with; what cannot be honoured is refused here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequest
from pasta_async.sampling import Sampling
from pasta_async.server.problems import Problem
from pasta_async.server.schema import ENGINE_ONLY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.limits import Limits
    from pasta_async.protocol import Message, ModelInfo
    from pasta_async.server.replies import Mode
    from pasta_async.server.schema import ChatMessage, ChatRequest, GenerateRequest, PastaLimits
    from pasta_async.server.settings import ServerSettings

__all__ = ["answer_limits", "check", "engine_only", "messages_of", "mode_of", "sampling_of"]


def check(request: GenerateRequest, info: ModelInfo, settings: ServerSettings, prompts: int = 1) -> None:
    """Refuse what no way of answering could honour.

    Raises:
        Problem: What, and why.
    """
    names = (info.name, *settings.model_names)
    if request.model not in names:
        raise Problem(
            f"the model {request.model!r} does not exist here; there is {', '.join(names)}",
            status=404,
            code="model_not_found",
            param="model",
        )
    if request.stream_options is not None and not request.stream:
        raise Problem("'stream_options' is only allowed when 'stream' is set", param="stream_options")
    if (count := prompts * (request.n or 1)) > settings.max_choices:
        raise Problem(f"at most {settings.max_choices} answers for a request, not {count}", param="n")
    if request.seed is not None and _random(request, settings) and not info.honours_seeds:
        raise Problem(
            "this engine does not honour seeds (SGLang does with --enable-deterministic-inference); "
            "leave the seed out, or set temperature to 0",
            code="unsupported_parameter",
            param="seed",
        )


def _random(request: GenerateRequest, settings: ServerSettings) -> bool:
    return (settings.temperature if request.temperature is None else request.temperature) > 0


def engine_only(request: GenerateRequest) -> tuple[str, ...]:
    """Fields that ask for what only the engine's own endpoint does."""
    given = (name for name in ENGINE_ONLY if hasattr(request, name))
    return tuple(name for name in given if getattr(request, name) not in ENGINE_ONLY[name])


def sampling_of(
    request: GenerateRequest, settings: ServerSettings, *, max_tokens: int | None, index: int = 0
) -> Sampling:
    """How the tokens of the choice `index` are chosen. Choices have seeds of their own.

    Raises:
        Problem: More tokens than the server gives.
    """
    ceiling = settings.max_tokens
    if max_tokens is not None and ceiling is not None and max_tokens > ceiling:
        raise Problem(f"at most {ceiling} tokens for an answer, not {max_tokens}", param="max_tokens")
    tokens = max_tokens or ceiling
    values: dict[str, Any] = {
        "temperature": settings.temperature if request.temperature is None else request.temperature,
        "top_p": None if request.top_p is None else max(request.top_p, 1e-9),  # OpenAI's 0: the likeliest
        "top_k": None if request.top_k == -1 else request.top_k,
        "min_p": request.min_p,
        "seed": None if request.seed is None else (request.seed + index) % 2**63,
        "max_tokens": tokens,
    }
    try:
        return Sampling(stop=request.stops, **{k: v for k, v in values.items() if v is not None})
    except InvalidRequest as error:
        raise Problem(str(error)) from error


def answer_limits(asked: PastaLimits, own: Limits) -> Limits:
    """The limits of one answer.

    Raises:
        Problem: More is asked for than the server gives.
    """
    values = asked.model_dump(exclude_none=True)
    for name in ("max_threads", "chunk_tokens", "timeout", "retries"):
        ceiling = getattr(own, name)
        if name in values and ceiling is not None and values[name] > ceiling:
            raise Problem(f"at most {ceiling:g}, not {values[name]:g}", param=f"pasta.limits.{name}")
    return own.model_copy(update=values)


def mode_of(request: GenerateRequest) -> Mode:
    """How the interpreter is to decode the answer."""
    if request.pasta.baseline:
        return "baseline"
    return "parallel" if request.pasta.parallel else "sequential"


def messages_of(request: ChatRequest) -> list[Message]:
    """The messages as the library takes them."""
    return [_message(message) for message in request.messages]


def _message(message: ChatMessage) -> Message:
    role = "system" if message.role == "developer" else message.role  # what chat templates know
    extra = {"name": message.name, "reasoning_content": message.reasoning_content}
    given = {name: value for name, value in extra.items() if value is not None}
    return {"role": role, "content": _text(message), **given}


def _text(message: ChatMessage) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content)


def foreign_messages(messages: Sequence[ChatMessage]) -> bool:
    """Whether something in them is for the engine's own endpoint: tools' calls and results, images, sound."""
    return any(
        message.role in ("tool", "function")
        or message.tool_calls
        or message.function_call
        or (
            not isinstance(message.content, str | None)
            and any(part.type != "text" for part in message.content)
        )
        for message in messages
    )


def refuse_engine_only(request: GenerateRequest) -> None:
    """Refuse what only an engine's own endpoint does."""
    if fields := engine_only(request):
        raise Problem(
            f"{fields[0]} is not supported by this engine", code="unsupported_parameter", param=fields[0]
        )
