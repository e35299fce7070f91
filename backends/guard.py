"""What users typed stays text: it is found in messages, checked, and kept apart from commands.

A *command* is a token that is more than its text: a tag, or a special token such as ``<|im_end|>``. A
marker character is put inside every command that somebody typed; what the tokenizer makes of the marker is
taken out again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from pasta_async.errors import InvalidRequestError, PromptTooLongError
from pasta_async.protocol import Message

MAX_DEPTH = 64
"""How deep lists and objects in a message may be nested."""

EDGE = 16
"""Tokens that a text may have more where it is cut than where it goes on."""

_MEDIA = ("image_url", "video_url", "audio_url", "input_audio")
"""Types of parts of a message that are no text: a template has a placeholder for them."""

_BOUNDS = ("stop", "regex", "ebnf")
"""Fields of a request to an OpenAI endpoint that bound the output, and are in no prompt."""

_EXCERPT = 30
"""Characters beside a command that a message shows."""

_PRIVATE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what is no chat, whatever the template.

    Raises:
        InvalidRequestError: There are no messages, or one lacks its role or its content.
    """
    if not messages:
        raise InvalidRequestError("there are no messages")
    for i, message in enumerate(messages):
        content: Any = message.get("content")
        calls = content is None and len(message) > 2  # a call of a tool needs no words
        if not (isinstance(content, str | list) or calls) or not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"message {i} needs a role, and a content: text, or a list of parts")


def lone_text(messages: Sequence[Message]) -> str:
    """What a model without a chat template takes: the text of one user message, and nothing besides.

    Raises:
        InvalidRequestError: There is more, or something else.
    """
    content: Any = messages[0].get("content")
    if len(messages) > 1 or messages[0].get("role") != "user" or not isinstance(content, str):
        raise InvalidRequestError("this model has no chat template: give it one user message, or text")
    return content


def texts_in(*values: Any) -> list[str]:
    """Every string in JSON-like values, names of fields included, each once.

    Raises:
        InvalidRequestError: One of them is no valid Unicode, or values are nested too deeply.
    """
    texts = dict.fromkeys(_strings(values))
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text has a lone surrogate at character {error.start}, which is no valid Unicode"
            ) from error
    return [*texts]


def _strings(values: Iterable[Any]) -> Iterator[str]:
    open_values = [(value, 0) for value in values]
    while open_values:
        value, depth = open_values.pop()
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"the messages are nested more than {MAX_DEPTH} deep")
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            fields = cast("dict[Any, Any]", value)
            open_values += [(part, depth + 1) for pair in fields.items() for part in pair]
        elif isinstance(value, list | tuple):
            open_values += [(part, depth + 1) for part in cast("list[Any]", value)]


def passed_texts(request: Mapping[str, Any]) -> list[str]:
    """Every text that an engine which renders a request itself may put into the prompt, each once.

    Beside the request's own these are the parts of a message side by side, and what stands in a text that is
    JSON: engines read the arguments of calls.

    Raises:
        InvalidRequestError: As `texts_in`.
    """
    said = {name: value for name, value in request.items() if name not in _BOUNDS}
    messages: Any = said.get("messages")
    if isinstance(messages, list):
        said["messages"] = [_as_rendered(message) for message in cast("list[Any]", messages)]
    texts = texts_in(said)
    return texts_in(texts, [_json_in(text) for text in texts])


def _as_rendered(message: Any) -> Any:
    """A message without its images and sounds, and with the texts of its parts joined as well."""
    parts = _get(message, "content")
    if not isinstance(parts, list):
        return message
    kept = [part for part in cast("list[Any]", parts) if _get(part, "type") not in _MEDIA]
    texts = [text for part in kept if isinstance(text := _get(part, "text"), str)]
    return {**cast("Message", message), "content": [*kept, "".join(texts), " ".join(texts)]}


def _get(part: Any, name: str) -> Any:
    return cast("dict[str, Any]", part).get(name) if isinstance(part, dict) else None


def _json_in(text: str) -> Any:
    """The object or list that a text is, if it is one."""
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return None
    except RecursionError:
        raise InvalidRequestError(f"the messages are nested more than {MAX_DEPTH} deep") from None


def as_written(texts: Iterable[str]) -> list[str]:
    """Texts as a template may write them: as they are, and as JSON, whose quotes could complete a tag."""
    written = ((text, json.dumps(text, ensure_ascii=False)) for text in texts)
    return list(dict.fromkeys(form for forms in written for form in forms))


def spells_command(text: str, command: str) -> InvalidRequestError:
    """The error for a text in which an engine that encodes it itself would read a command."""
    at = max(0, text.find(command))
    shown = text[max(0, at - _EXCERPT) : at + len(command) + _EXCERPT]
    return InvalidRequestError(
        f"{shown!r} holds {command!r}. The engine encodes this request itself, and there that is a special "
        "token of the model: leave it out, or leave out what only the engine's own endpoint does (tools, "
        "response_format, logprobs, ...)"
    )


def replace_texts(value: Any, edit: Callable[[str], str]) -> Any:
    """The same JSON-like value with every string edited, names of fields included."""
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, dict):
        fields = cast("Mapping[Any, Any]", value)
        return {replace_texts(key, edit): replace_texts(part, edit) for key, part in fields.items()}
    if isinstance(value, list | tuple):
        return [replace_texts(part, edit) for part in cast("list[Any]", value)]
    return value


def free_marker(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of the texts."""
    taken = set[str]().union(*texts)
    return next(character for character in map(chr, _PRIVATE) if character not in taken)


def mark(text: str, commands: Iterable[str], marker: str, *, edges: bool = True) -> str:
    """Put the marker inside every occurrence of a command, overlapping ones too.

    With `edges`, also where a text begins or ends with two characters or more of a command, which what
    stands around it in a chat template could complete, or spells one within quotes: tools as JSON have ``"``
    around a value, and ``"/>`` is a tag.
    """
    places: set[int] = set()
    quote = '"' if edges else ""
    for command in commands:
        found = re.finditer(f"(?={re.escape(command)})", f"{quote}{text}{quote}")
        places.update(one.start() + 1 - len(quote) for one in found)
        for size in range(2, len(command)) if edges else ():
            if text.startswith(command[-size:]):
                places.add(1)
            if text.endswith(command[:size]):
                places.add(len(text) - 1)
    cuts = [0, *sorted(places), len(text)]
    return marker.join(text[start:end] for start, end in pairwise(cuts))


def apart(message: Message, marker: str) -> Message:
    """A message with the marker behind each text among several parts.

    A template may put them side by side, where they could spell what none of them does.
    """
    parts: Any = message.get("content")
    if not isinstance(parts, list) or len(cast("list[Any]", parts)) < 2:
        return message
    content = [
        {**part, "text": part["text"] + marker} if isinstance(_get(part, "text"), str) else part
        for part in cast("list[Any]", parts)
    ]
    return {**message, "content": content}


def with_arguments_read(message: Message) -> Message:
    """A message with the arguments of its calls as objects: their JSON may spell what its text does not."""
    calls: Any = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_arguments_read(call) for call in cast("list[Any]", calls)]}


def _with_arguments_read(call: Any) -> Any:
    function = _get(call, "function")
    arguments = _get(function, "arguments")
    read = _json_in(arguments) if isinstance(arguments, str) else None
    if not isinstance(read, dict):
        return call
    return {**call, "function": {**function, "arguments": cast("dict[str, Any]", read)}}


def beginnings(texts: Iterable[str], limit: int) -> Iterator[str]:
    """Growing parts of texts that may be too long for so many tokens, each far longer than those before.

    Whoever encodes them first, and gives the ids to `check_fits`, never encodes much more than fits.
    """
    for text in texts:
        size = 8 * max(limit, 1)
        while len(text) > size:
            yield text[:size]
            size *= 4


def check_fits(ids: Sequence[int], limit: int) -> None:
    """Refuse the ids of a text's beginning if the text has more than `limit`, however it goes on."""
    if len(ids) > limit + EDGE:
        raise PromptTooLongError(
            f"the text has more than the {limit} tokens that the model takes", limit=limit
        )
