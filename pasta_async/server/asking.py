"""From a request to what `Client.generate` is called with; what cannot be honoured is refused here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError
from pasta_async.sampling import Sampling
from pasta_async.server.problems import Problem

if TYPE_CHECKING:
    from pasta_async.limits import Limits
    from pasta_async.protocol import Message, ModelInfo
    from pasta_async.server.schema import ChatMessage, GenerateRequest, PastaLimits
    from pasta_async.server.service import Service
    from pasta_async.server.settings import ServerSettings

__all__ = ["answer_limits", "check", "messages_of", "questions", "sampling_values"]


def check(request: GenerateRequest, info: ModelInfo, settings: ServerSettings) -> None:
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
        raise Problem("stream_options is only allowed when stream is set", param="stream_options")
    if (count := len(request.prompts) * request.choices) > settings.max_choices:
        raise Problem(f"at most {settings.max_choices} answers for a request, not {count}", param="n")
    asked, most = request.token_limit, settings.max_tokens
    if asked is not None and most is not None and asked > most:
        raise Problem(f"at most {most} tokens for an answer, not {asked}", param="max_tokens")
    if (
        request.seed is not None
        and not info.honours_seeds
        and sampling_values(request, settings)["temperature"]
    ):
        raise Problem(
            "this engine does not honour seeds (SGLang does with --enable-deterministic-inference); "
            "leave the seed out, or set temperature to 0",
            code="unsupported_parameter",
            param="seed",
        )


def questions(request: GenerateRequest, service: Service) -> list[dict[str, Any]]:
    """For each choice of each prompt the arguments of `Client.generate`, but for the prompt.

    Raises:
        Problem: More is asked for than the server gives.
    """
    values = sampling_values(request, service.settings)
    question = {
        "limits": answer_limits(request.pasta.limits, service.limits),
        "prompted": request.pasta.prompted,
        "baseline": request.pasta.baseline,
        "parallel": request.pasta.parallel,
        "fork": request.pasta.fork,
    }
    return [
        {**question, "sampling": _sampling({**values, "stop": request.stops}, request.seed, index)}
        for _ in request.prompts
        for index in range(request.choices)
    ]


def sampling_values(request: GenerateRequest, settings: ServerSettings) -> dict[str, Any]:
    """What the request, or else the server, says about sampling, by its name in OpenAI's API."""
    values: dict[str, Any] = {
        "temperature": settings.temperature if request.temperature is None else request.temperature,
        "top_p": None if request.top_p is None else max(request.top_p, 1e-9),  # 0 is the likeliest token
        "top_k": None if request.top_k == -1 else request.top_k,
        "min_p": request.min_p,
        "max_tokens": settings.max_tokens if request.token_limit is None else request.token_limit,
    }
    return {name: value for name, value in values.items() if value is not None}


def _sampling(values: dict[str, Any], seed: int | None, index: int) -> Sampling:
    """Each choice has a seed of its own."""
    if seed is not None:
        values["seed"] = (seed + index) % 2**63
    try:
        return Sampling(**values)
    except InvalidRequestError as error:
        raise Problem(str(error)) from error


def answer_limits(asked: PastaLimits, own: Limits) -> Limits:
    """The limits of one answer.

    Raises:
        Problem: More is asked for than the server gives.
    """
    values = asked.model_dump(exclude_none=True)
    for name in ("max_threads", "chunk_tokens", "timeout", "retries"):
        most = getattr(own, name)
        if name in values and most is not None and values[name] > most:
            raise Problem(f"at most {most:g}, not {values[name]:g}", param=f"pasta.limits.{name}")
    return own.model_copy(update=values)


def messages_of(messages: list[ChatMessage]) -> list[Message]:
    """The messages as the library takes them."""
    return [_message(message) for message in messages]


def _message(message: ChatMessage) -> Message:
    role = "system" if message.role == "developer" else message.role  # what chat templates know
    extra = {"name": message.name, "reasoning_content": message.reasoning_content}
    given = {name: value for name, value in extra.items() if value is not None}
    return {"role": role, "content": message.text, **given}
