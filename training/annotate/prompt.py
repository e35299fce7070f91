"""What an annotator is asked: the language, our own examples, and what was wrong with its last reply."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.lang import escape, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pasta_async.protocol import Message
    from pasta_async.training.corpus.records import Record

__all__ = ["EXAMPLES", "INSTRUCTIONS", "first_prompt", "retry_prompt"]

_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("prompt.toml").read_text(encoding="utf-8"))
INSTRUCTIONS: str = _TEXTS["instructions"]
"""The language, and what to do."""
EXAMPLES: tuple[tuple[str, str], ...] = tuple((one["prompt"], one["written"]) for one in _TEXTS["examples"])
"""Prompts, and answers in their written form."""


def first_prompt(record: Record) -> list[Message]:
    """The messages that ask for an annotation of a record's answer."""
    messages = [{"role": "system", "content": INSTRUCTIONS}]
    for prompt, written in EXAMPLES:
        messages.append(_request(prompt, escape(parse(written).text)))
        messages.append({"role": "assistant", "content": written})
    return [*messages, _request(record.prompt, escape(record.document.text))]


def retry_prompt(reply: str, problems: Iterable[str]) -> list[Message]:
    """The messages that follow when a reply was not accepted."""
    wrong = "\n".join(f"- {problem}" for problem in problems)
    request = f"This is not right yet:\n{wrong}\n\nReply with the whole response and its tags, corrected."
    return [{"role": "assistant", "content": reply}, {"role": "user", "content": request}]


def _request(prompt: str, response: str) -> Message:
    return {"role": "user", "content": f"PROMPT:\n{prompt}\n\nRESPONSE:\n{response}"}
