"""Texts that are made to cost much: memory stays in proportion to the text, and faults are bounded."""

from __future__ import annotations

import tracemalloc

import pytest

from pasta_async.lang import MAX_DIAGNOSTICS, parse

PROMISE = '<promise topic="x" tokens="10"/>'

REPEATED = {
    "angle brackets": "<",
    "cut promises": "<promise ",
    "stray opening tags": "<async>",
    "unclosed quotes": '<promise topic="',
    "escapes": "<\\sync/>",
    "syncs": "\u00e9<sync/>",
    "promises": PROMISE,
    "bare promises": "<promise/>",
    "kept promises": f"{PROMISE}<async>a</async><sync/>",
    "prefixes": "<promis",
    "newlines": "\n",
}
ENDLESS = {
    "a quote that never closes": ('<promise topic="', "x"),
    "tags' ends in such a quote": ('<promise topic="', "x >"),
    "white space behind a promise": (PROMISE, " "),
    "white space in a tag": ("<sync", " "),
    "backslashes": ("<", "\\"),
    "attributes": ("<async ", "a=b "),
    "a chunk": (f"{PROMISE}<async>", "\u4e16"),
}


def hostile(name: str, size: int) -> str:
    if name in REPEATED:
        return REPEATED[name] * (size // len(REPEATED[name]))
    start, more = ENDLESS[name]
    return start + more * ((size - len(start)) // len(more))


@pytest.mark.parametrize("name", [*REPEATED, *ENDLESS])
def test_memory_is_a_small_multiple_of_the_text(name: str) -> None:
    text = hostile(name, 100_000)
    tracemalloc.start()
    try:
        document = parse(text)
        assert sum(len(node.format()) for node in document.nodes) >= len(text)
        assert len(document.diagnostics) <= MAX_DIAGNOSTICS
        assert tracemalloc.get_traced_memory()[1] < 24 * len(text) + 500 * MAX_DIAGNOSTICS
    finally:
        tracemalloc.stop()
