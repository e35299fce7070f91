"""Prompts: the forms that users may pass, and their checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from reprlib import repr as shortened
from typing import Any, cast

from pasta_async.errors import InvalidRequestError, PromptTooLongError
from pasta_async.options import Limits
from pasta_async.protocol import Message, Model

Prompt = str | Sequence[Message] | Sequence[int]
"""A text (one user message), chat messages, or token ids."""


def read_prompt(prompt: Prompt) -> tuple[list[Message], list[int]]:
    """The prompt's messages or its ids; the other of the two is empty.

    Raises:
        InvalidRequestError: It is neither, or empty, or cannot be sent: ids out of range, text with half a
            surrogate pair, messages that are not JSON.
    """
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    elif not isinstance(prompt, list | tuple):
        raise InvalidRequestError(
            "the prompt is a text, a list of messages with a role and a content, or ids; "
            f"got {shortened(prompt)}"
        )
    if not prompt:
        raise InvalidRequestError("the prompt has no message")
    if isinstance(prompt[0], int):
        ids = cast("Sequence[int]", prompt)
        check_ids(ids, 2**31)
        return [], [*ids]
    messages = [_message(index, item) for index, item in enumerate(cast("Sequence[Any]", prompt))]
    check_json(messages, "the prompt")
    if not any(str(message["content"] or "").strip() for message in messages):
        raise InvalidRequestError("the prompt is empty")
    return messages, []


def _message(index: int, given: object) -> Message:
    message = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else dict[str, Any]()
    content: Any = message.get("content", ...)
    if not isinstance(message.get("role"), str) or not isinstance(content, str | list | None):
        raise InvalidRequestError(
            f"message {index} needs a role, and a content: text, or a list of texts; "
            f"got {shortened(cast('Any', given))}"
        )
    if not isinstance(content, list):
        return message
    texts: list[str] = []  # they are joined, since few chat templates take a list
    parts = cast("list[Any]", content)
    for number, part in enumerate(parts):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        if fields.get("type", "text") != "text" or not isinstance(text := fields.get("text"), str):
            raise InvalidRequestError(
                f"message {index}: part {number} of its content is no text, and nothing else is supported; "
                f"got {shortened(parts[number])}"
            )
        texts.append(text)
    return {**message, "content": "".join(texts)}


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse values that are no token ids, by an `InvalidRequestError` that names the first one's index."""
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"id {index} of the prompt is {shortened(token)}, not 0 to {vocab_size - 1}"
            )


def check_json(value: object, name: str) -> None:
    """Refuse, by an `InvalidRequestError`, a value that cannot be sent as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} cannot be sent as JSON: {shortened(str(error))}") from error


def most_tokens(model: Model, limits: Limits) -> int:
    """Largest number of tokens of a prompt: the answer needs at least one token of the context."""
    most = model.context_length - 1
    return most if limits.prompt_tokens is None else min(most, limits.prompt_tokens)


def check_length(ids: Sequence[object], model: Model, limits: Limits) -> None:
    """Refuse, by a `PromptTooLongError`, a prompt too long for the model or for `Limits.prompt_tokens`."""
    allowed = {model.name: model.context_length - 1, "Limits.prompt_tokens": limits.prompt_tokens}
    for name, limit in allowed.items():
        if limit is not None and len(ids) > limit:
            raise PromptTooLongError(f"the prompt has {len(ids)} tokens; {name} allows {limit}", limit=limit)
