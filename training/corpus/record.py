"""One answer with its prompt, as it is stored: a line of JSON."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message  # noqa: TC001 (pydantic reads it at run time)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Record", "check_messages", "digest", "plain_record"]

_ROLES = ("system", "user", "assistant")


class Record(BaseModel):
    """A prompt and its answer in PASTA-LANG's written form. The format of every step from annotation on."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    """Unique in its file."""
    messages: tuple[Message, ...]
    """The prompt: ``{"role": ..., "content": ...}``, the last one by the user."""
    written: str
    """The answer in its written form; a plain answer is one without tags (literal ones escaped)."""
    source: str = ""
    """Where prompt and answer come from."""
    annotator: str = ""
    """Who put in the tags: a model's name, ``structure:points``, ...; empty for a plain answer."""
    scores: dict[str, float] = {}
    """What was measured of it, by name."""

    @field_validator("messages")
    @classmethod
    def _checked(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return check_messages(messages)

    @property
    def document(self) -> Document:
        """The answer, read leniently: what is malformed is in its `diagnostics`."""
        return parse(self.written)

    @property
    def prompt(self) -> str:
        """What the user said last."""
        return self.messages[-1]["content"]


def plain_record(messages: Sequence[Message], response: str, *, source: str = "", id: str = "") -> Record:
    """A record of an answer that nobody annotated; without an id it gets one made of its content."""
    record_id = id or digest(messages, response)
    return Record(id=record_id, messages=tuple(messages), written=escape(response), source=source)


def digest(messages: Sequence[Message], response: str) -> str:
    """24 hexadecimal digits that stand for a prompt and its answer."""
    content = json.dumps([list(messages), response], sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def check_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same messages, if they are a prompt.

    Raises:
        ValueError: They are none, and why.
    """
    for message in messages:
        if message.keys() != {"role", "content"} or message["role"] not in _ROLES:
            raise ValueError(f"a message has a role ({', '.join(_ROLES)}) and a content, not {message}")
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's")
    return messages
