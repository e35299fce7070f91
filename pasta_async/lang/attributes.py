"""The attributes of a promise, read leniently."""

from __future__ import annotations

import re

from pasta_async.lang.diagnostics import Code
from pasta_async.lang.document import Promise

__all__ = ["MAX_ESTIMATE", "read_attributes", "read_promise"]

MAX_ESTIMATE = 10**6
"""Estimates above this are taken for noise."""

_EXACT = re.compile(r'<promise(?: topic="[^"]*")?(?: tokens="[^"]*")?/>')
_ATTRIBUTE = re.compile(
    r"""\s*(?P<name>[A-Za-z_][\w.:-]*)\s*=\s*
    (?:"(?P<double>[^"]*)"
    |'(?P<single>[^']*)'
    |\u201c(?P<double_typographic>[^\u201d]*)\u201d
    |\u2018(?P<single_typographic>[^\u2019]*)\u2019
    |(?P<bare>[^\s"'=\u201c\u201d\u2018\u2019]+))""",
    re.VERBOSE,
)
_NAMES = frozenset({"topic", "tokens"})


def read_promise(source: str, rest: str) -> tuple[Promise | None, list[Code]]:
    """Read a promise tag, given whole and as what stands between its name and `>`.

    Returns:
        The promise, or None if the tag is to be ignored, and what there is to say about it.
    """
    attributes = read_attributes(rest)
    if isinstance(attributes, Code):
        return None, [attributes]
    codes: list[Code] = []
    if not _EXACT.fullmatch(source):
        codes.append(Code.TAG_FORM)
    topic = attributes.get("topic", "")
    words = len(topic.split())
    if words == 0 or words > 3:
        codes.append(Code.TOPIC_LONG if words else Code.TOPIC_MISSING)
    tokens, complaint = _read_tokens(attributes.get("tokens"))
    if complaint:
        codes.append(complaint)
    return Promise(topic, tokens, source=source), codes


def read_attributes(rest: str) -> dict[str, str] | Code:
    """Read `name="value"` pairs, in any order and with any quotes, or say why they cannot be read."""
    rest = rest.rstrip()
    stop = len(rest.removesuffix("/").rstrip())
    values: dict[str, str] = {}
    position = 0
    while position < stop:
        found = _ATTRIBUTE.match(rest, position, stop)
        if not found or found["name"] in values:
            return Code.ATTRIBUTES_BAD
        values[found["name"]] = found[found.lastgroup or "bare"]
        position = found.end()
    return values if values.keys() <= _NAMES else Code.ATTRIBUTE_UNKNOWN


def _read_tokens(value: str | None) -> tuple[int | None, Code | None]:
    if value is None:
        return None, Code.TOKENS_MISSING
    digits = value.strip().lstrip("0")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(MAX_ESTIMATE)):
        return None, Code.TOKENS_BAD
    number = int(digits)
    if number > MAX_ESTIMATE:
        return None, Code.TOKENS_BAD
    rounded = -(-number // 10) * 10
    return rounded, None if rounded == number else Code.TOKENS_NOT_TENS
