"""Prompts: what users may pass, checked, and PASTA-LANG told to models that were not trained to write it.

The quality of what models write that were only told is unmeasured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from reprlib import repr as shortened
from typing import Any, cast

from pasta_async.errors import InvalidRequestError, PromptTooLongError
from pasta_async.options import Limits
from pasta_async.protocol import Message, ModelInfo

Prompt = str | Sequence[Message] | Sequence[int]
"""A text (one user message), chat messages, or token ids."""

INSTRUCTIONS = """\
Parts of your answer can be written at the same time by several writers. You are the main writer. Mark the \
parts with these tags, exactly as shown, and with no others:

<promise topic="at most three words" tokens="60"/>
    stands for a passage that does not depend on what other passages say. Another writer, who sees all \
that you have written up to here, writes it in this place at once. Do not write it yourself; go on with \
what follows it. topic says what the passage is about, tokens how long it will be, in tens.
<sync/>
    waits until all promised passages are there. You then see them. Write it before anything that needs \
them, such as a conclusion, a comparison or a total. It is not needed at the end.

Promise only passages of two sentences or more that can be written without each other. A short answer, or \
one in which each step needs the step before, has no tags at all.

Example. Asked to compare tea and coffee:
Both drinks have a long history. <promise topic="tea" tokens="60"/> <promise topic="coffee" \
tokens="60"/><sync/> Overall, coffee is the stronger of the two.

Example. Asked for three ideas for a rainy day:
Here are three ideas:

1. <promise topic="baking bread" tokens="40"/>
2. <promise topic="board games" tokens="40"/>
3. <promise topic="museum visit" tokens="40"/>

Example. Asked what 17 times 3 is, less 1:
17 times 3 is 51, and 51 less 1 is 50.

When your text so far ends with <async>, you are one of the other writers: write only the passage that was \
promised last, without any tag, and end it with </async>.
"""
"""What a model is told about the language."""


def with_instructions(messages: Sequence[Message], default: str | None = "") -> list[Message]:
    """The messages with the description in the system message, after the `default` if there is none.

    If the model takes no system message (None) it stands before the first message.
    """
    first, *rest = messages
    if first["role"] != "system" and default is not None:
        return [{"role": "system", "content": f"{default}\n\n{INSTRUCTIONS}".lstrip()}, *messages]
    told, content = first["role"] == "system", first["content"] or ""
    if isinstance(content, list):
        part = {"type": "text", "text": INSTRUCTIONS}
        return [{**first, "content": [*content, part] if told else [part, *content]}, *rest]
    texts = (content, INSTRUCTIONS) if told else (INSTRUCTIONS, content)
    return [{**first, "content": "\n\n".join(texts).lstrip()}, *rest]


SYSTEM_PROBE, USER_PROBE = "qwxz", "zxwq"


def default_system(without: str, given: str) -> str:
    """The system message that a chat template brings where there is none; empty if it brings none.

    Args:
        without: A chat of one user message, `USER_PROBE`, as the template writes it.
        given: The same behind the system message `SYSTEM_PROBE`.
    """
    before, _, behind = given.partition(SYSTEM_PROBE)
    framed = without.startswith(before) and without.endswith(behind)
    if not framed or len(without) < len(before) + len(behind) or USER_PROBE not in behind:
        return ""
    return without[len(before) : len(without) - len(behind)].strip()


def read_prompt(prompt: Prompt) -> tuple[list[Message], list[int]]:
    """The prompt's messages or its ids; the other of the two is empty.

    Raises:
        InvalidRequestError: It is neither, or empty, or cannot be sent: ids that are no ids, text with half a
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
    messages = [_message(index, item) for index, item in enumerate(cast("Sequence[object]", prompt))]
    check_json(messages, "the prompt")
    if not any(str(message["content"] or "").strip() for message in messages):
        raise InvalidRequestError("the prompt is empty")
    return messages, []


def _message(index: int, value: object) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"message {index} needs to be a mapping; got {shortened(value)}")
    message = cast("dict[object, Any]", value)
    if not {"role", "content"} <= message.keys():
        raise InvalidRequestError(f"message {index} needs a role and a content; got {shortened(message)}")
    if not isinstance(message["role"], str) or not isinstance(message["content"], str | list | None):
        raise InvalidRequestError(f"message {index}: the role is a text, the content text or parts")
    return cast("Message", message)


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse what is no token id: an `InvalidRequestError` names the first one, and where it stands."""
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"id {index} of the prompt is {shortened(token)}, not 0 to {vocab_size - 1}"
            )


def check_json(value: object, name: str) -> None:
    """Refuse what cannot be sent as JSON in UTF-8: an `InvalidRequestError` says why."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} cannot be sent as JSON: {shortened(str(error))}") from error


def check_text(text: object) -> None:
    """Refuse, by an `InvalidRequestError`, what is no text, or has half a surrogate pair."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"a text is encoded, not {shortened(text)}")
    check_json(text, "the text")


def check_length(ids: Sequence[int], info: ModelInfo, limits: Limits) -> None:
    """Refuse, by a `PromptTooLongError`, a prompt too long for the model or for `Limits.prompt_tokens`."""
    allowed = {info.name: info.context_length - 1, "Limits.prompt_tokens": limits.prompt_tokens}
    for what, limit in allowed.items():
        if limit is not None and len(ids) > limit:
            raise PromptTooLongError(f"the prompt has {len(ids)} tokens; {what} allows {limit}", limit=limit)
