"""Texts that are made to cost much: the reader's work and memory stay in proportion to the text."""

from __future__ import annotations

import tracemalloc

import pytest

from pasta_async.lang import MAX_DIAGNOSTICS, MAX_TAG, Document, Parser, Text, check, parse
from pasta_async.lang.lexer import Lexeme, Lexer

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


def peak_memory(text: str, step: int) -> int:
    """Bytes at the peak of reading a text by pieces of so many characters, beyond the text itself."""
    tracemalloc.start()
    try:
        parser = Parser()
        for start in range(0, len(text), step):
            parser.feed(text[start : start + step])
        parser.close()
        document = parser.document()
        assert document.nodes
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [*REPEATED, *ENDLESS])
def test_memory_is_a_small_multiple_of_the_text(name: str) -> None:
    text = hostile(name, 100_000)
    step = 1 << 12
    assert peak_memory(text, step) < 24 * len(text) + 500 * MAX_DIAGNOSTICS


@pytest.mark.parametrize("name", ENDLESS)
def test_memory_is_a_small_multiple_of_the_text_character_by_character(name: str) -> None:
    text = hostile(name, 30_000)
    assert peak_memory(text, 1) < 12 * len(text) + 50_000


class CountingLexer(Lexer):
    """Counts the characters that are looked at."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        super().__init__()
        self.work = 0

    def feed(self, piece: str) -> list[Lexeme]:
        self.work += len(self.held) + len(piece)
        return super().feed(piece)


@pytest.mark.parametrize("name", [*REPEATED, *ENDLESS])
@pytest.mark.parametrize("step", [1, 7, 4096])
def test_work_is_linear_for_any_cut(name: str, step: int) -> None:
    """A piece costs its own length and that of what is held, which has a bound."""
    text = hostile(name, 3_000 * step if step < 4096 else 100_000)
    lexer = CountingLexer()
    longest = 0
    for start in range(0, len(text), step):
        lexer.feed(text[start : start + step])
        longest = max(longest, len(lexer.held))
    assert longest <= MAX_TAG + 1
    assert lexer.work <= len(text) + (MAX_TAG + 1) * (len(text) // step + 1)


@pytest.mark.parametrize("name", [*REPEATED, *ENDLESS])
def test_megabytes(name: str) -> None:
    """Ten of those that are all text; less of those that are all tags, since each becomes a node."""
    text = hostile(name, 10_000_000 if name in ENDLESS else 500_000)
    document = parse(text)
    assert sum(len(node.format()) for node in document.nodes) >= len(text)
    assert len(document.diagnostics) <= MAX_DIAGNOSTICS


def test_diagnostics_are_recorded_up_to_a_limit() -> None:
    assert len(check("<sync/>" * (MAX_DIAGNOSTICS + 5))) == MAX_DIAGNOSTICS


def test_what_is_held_comes_out_at_the_limit() -> None:
    parser = Parser()
    parser.feed("<sync")
    for _ in range(MAX_TAG - 6):
        assert parser.feed(" ") == []
    assert parser.feed(" ") == ["<sync" + " " * (MAX_TAG - 5)]
    parser.close()
    assert parser.document() == Document((Text("<sync" + " " * (MAX_TAG - 5)),))
    assert [found.code for found in parser.diagnostics] == ["tag-broken"]
