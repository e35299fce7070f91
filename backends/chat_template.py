"""A model's chat template, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pasta_async.errors import InvalidRequestError
from pasta_async.protocol import Message


class ChatTemplate:
    """A model's Jinja template, run in a sandbox as Hugging Face does.

    Args:
        source: The template.
        tokens: What it may name: ``bos_token`` and the like.

    Raises:
        ValueError: The template is malformed.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        helpers: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _now}
        environment.globals.update(helpers)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template is malformed: {error}") from error
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
        """The conversation as text, up to where the answer begins.

        Raises:
            InvalidRequestError: The template refuses these messages or arguments.
        """
        defaults = {**self._tokens, "add_generation_prompt": True, "tools": None, "documents": None}
        values = {**defaults, **kwargs, "messages": list(messages)}
        try:
            return self._template.render(values)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise InvalidRequestError(f"the chat template refuses these messages: {error}") from error


class _Generation(Extension):
    """``{% generation %}``, which marks answers for training; here its content and nothing more."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:  # templates may pass it by name
    return datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
