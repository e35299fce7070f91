"""Readers of PASTA-LANG: a whole document in its written form, and one thread's text while it is decoded."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from pasta_async.lang.diagnostics import MAX_DIAGNOSTICS, Code, Diagnostic
from pasta_async.lang.document import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_TAG,
    PROMISE_CLOSE,
    PROMISE_OPEN,
    PROMISE_TOKENS,
    SYNC,
    Chunk,
    ClosedBy,
    Document,
    Ignored,
    Node,
    Promise,
    Sync,
    Text,
    promise_source,
)
from pasta_async.lang.lexer import (
    Broken,
    Tag,
    lex,
    make_promise,
    read_attributes,
    read_promise,
    split_marker,
)

__all__ = ["ChunkEnded", "ChunkParser", "MainParser", "Reading", "ThreadParser"]

_ignored = lru_cache(256)(Ignored)  # equal tags share one node: a hostile text may be nothing but them


class ChunkEnded(NamedTuple):
    """The chunk's thread is over: by `</async>`, or before a promise or sync that it wrote instead."""

    closed_by: ClosedBy = "writer"


Reading = str | Promise | Sync | ChunkEnded
"""A part of a thread's output, as its parser has read it. A `str` is visible text."""


class _Nodes:
    """Collects nodes while a text is read."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._text: list[str] = []  # pieces of text since the last node

    def _append(self, node: Node) -> None:
        self._end_text()
        self._nodes.append(node)

    def _end_text(self) -> None:
        if self._text:
            self._nodes.append(Text("".join(self._text)))
            self._text.clear()


_Place = tuple[int, int, int]
"""Number of characters before it, line and column from 1: the fields of a `Diagnostic`."""


class _Position:
    """The place behind all text that was read."""

    def __init__(self) -> None:
        self.offset = 0
        """Number of characters before it."""
        self._line = 1
        self._line_start = 0

    @property
    def place(self) -> _Place:
        """The position at which the text goes on."""
        return self.offset, self._line, self.offset - self._line_start + 1

    def advance(self, text: str) -> None:
        """Read more text."""
        if "\n" in text:
            self._line += text.count("\n")
            self._line_start = self.offset + text.rindex("\n") + 1
        self.offset += len(text)


# Documents ------------------------------------------------------------------------------------------------


def read_document(text: str) -> Document:
    """Read a document in its written form; its `diagnostics` say what is wrong with it."""
    return _DocumentReader().read(text)


class _DocumentReader(_Nodes):
    """Reads one document, lexeme by lexeme."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[int, Code]] = []  # diagnostics, by the characters before their places
        self._open = False  # a promise was made since the last sync
        self._gap: str | None = None  # white space since a promise that `<async>` may still follow
        self._promise_offset = 0
        self._outside: list[Node] | None = None  # the document's nodes, while those of a chunk are collected

    def read(self, text: str) -> Document:
        """Read a whole text."""
        for lexeme in lex(text):
            if isinstance(lexeme, str):
                if self._gap is not None and lexeme.isspace():
                    self._gap += lexeme
                else:
                    self._end_gap()
                    self._text.append(lexeme)
            elif isinstance(lexeme, Broken):
                self._end_gap()
                self._report(lexeme.code, lexeme.offset)
            elif code := self._read_tag(lexeme):
                self._end_gap()
                self._report(code, lexeme.offset)
                self._append(_ignored(lexeme.source))
        self._end_gap()
        if self._outside is not None:
            self._report(Code.ASYNC_UNCLOSED, len(text))
            self._end_chunk("end")
        self._end_text()
        # That a promise has no chunk is known only behind it, so the diagnostics are sorted by their places.
        position = _Position()
        diagnostics: list[Diagnostic] = []
        for offset, code in sorted(self._found, key=lambda item: item[0]):
            position.advance(text[position.offset : offset])
            diagnostics.append(Diagnostic(code, *position.place))
        return Document(tuple(self._nodes), tuple(diagnostics))

    def _report(self, code: Code, offset: int) -> None:
        if len(self._found) < MAX_DIAGNOSTICS:
            self._found.append((offset, code))

    def _end_gap(self) -> None:
        """Take the white space behind a promise as text: no chunk follows."""
        if self._gap is None:
            return
        self._report(Code.PROMISE_OPEN, self._promise_offset)
        if self._gap:
            self._text.append(self._gap)
        self._gap = None

    def _read_tag(self, tag: Tag) -> Code | None:
        """Read a tag into nodes; returns the code of its mistake if it is to be ignored."""
        if tag.closing:
            return self._close(tag)
        if tag.name == "async":
            return self._begin_chunk(tag)
        if self._outside is not None:
            return Code.PROMISE_NESTED if tag.name == "promise" else Code.SYNC_NESTED
        return self._promise(tag) if tag.name == "promise" else self._sync(tag)

    def _promise(self, tag: Tag) -> Code | None:
        promise, codes = read_promise(tag)
        if promise is None:
            return codes[0]
        self._end_gap()
        for code in codes:
            self._report(code, tag.offset)
        self._append(promise)
        self._open = True
        self._gap = ""
        self._promise_offset = tag.offset
        return None

    def _begin_chunk(self, tag: Tag) -> Code | None:
        if self._gap is None:
            return Code.ASYNC_STRAY
        attributes = read_attributes(tag.rest)
        if isinstance(attributes, Code):
            return attributes
        # `<async/>` closes itself; as an opening tag it would take the rest of the document.
        if tag.rest.endswith("/"):
            return Code.ATTRIBUTES_BAD
        if self._gap:
            self._report(Code.ASYNC_APART, tag.offset)
            self._text.append(self._gap)  # the first text of the chunk
        self._gap = None
        if tag.source != ASYNC_OPEN:
            self._report(Code.TAG_FORM, tag.offset)
        self._outside = self._nodes
        self._nodes = []
        return None

    def _close(self, tag: Tag) -> Code | None:
        if tag.name != "async":
            return Code.TAG_STRAY_CLOSE
        if tag.source != ASYNC_CLOSE:
            return Code.ATTRIBUTES_BAD
        if self._outside is None:
            return Code.ASYNC_STRAY_CLOSE
        self._end_chunk("writer")
        return None

    def _end_chunk(self, closed_by: ClosedBy) -> None:
        self._end_text()
        nodes = tuple(node for node in self._nodes if isinstance(node, Text | Ignored))
        assert self._outside is not None, "a chunk is open"
        self._nodes = self._outside
        self._outside = None
        promise = self._nodes[-1]
        assert isinstance(promise, Promise), "a chunk stands behind its promise"
        self._nodes[-1] = replace(promise, chunk=Chunk(nodes, closed_by))

    def _sync(self, tag: Tag) -> Code | None:
        attributes = read_attributes(tag.rest)
        if isinstance(attributes, Code):
            return attributes
        if attributes:
            return Code.ATTRIBUTE_UNKNOWN
        if not self._open:
            return Code.SYNC_IDLE
        self._end_gap()
        if tag.source != SYNC:
            self._report(Code.TAG_FORM, tag.offset)
        self._append(Sync())
        self._open = False
        return None


# Threads --------------------------------------------------------------------------------------------------


class _ThreadNodes(_Nodes):
    """Collects the nodes of one thread while it is decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.diagnostics: list[Diagnostic] = []
        """The diagnostics in the order in which they were found; at most `MAX_DIAGNOSTICS`."""
        self._position = _Position()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far; text that is held back is not in them."""
        return (*self._nodes, Text("".join(self._text))) if self._text else tuple(self._nodes)

    def _report(self, code: Code, place: _Place) -> None:
        if len(self.diagnostics) < MAX_DIAGNOSTICS:
            self.diagnostics.append(Diagnostic(code, *place))

    def _ignore(self, code: Code, tag: str, place: _Place) -> None:
        self._report(code, place)
        self._append(_ignored(tag))

    def _write(self, text: str) -> list[Reading]:
        if text:
            self._text.append(text)
        return [text] if text else []


class MainParser(_ThreadNodes):
    """Reads the main thread. Its promises have no chunks here: other threads write them."""

    def __init__(self) -> None:
        super().__init__()
        self._open = False  # a promise was made since the last sync
        self._values: list[str] | None = None  # topic and tokens of the promise whose tag is coming in
        self._promise_place = self._position.place

    def feed_text(self, text: str) -> list[Reading]:
        """Read more text."""
        self._position.advance(text)
        if self._values is None:
            return self._write(text)
        return self._extend_promise(self._values, text)

    def feed_tag(self, tag: str) -> list[Reading]:
        """Read a tag token."""
        tag_place = self._position.place
        self._position.advance(tag)
        if tag in (PROMISE_TOKENS, PROMISE_CLOSE):
            return self._continue_promise(tag)
        # Any other tag inside of a promise breaks it off.
        readings = self._break_promise(Code.TAG_BROKEN)
        if tag == PROMISE_OPEN:
            self._values = [""]
            self._promise_place = tag_place
        elif tag == ASYNC_OPEN:
            self._ignore(Code.ASYNC_STRAY, tag, tag_place)
        elif tag == ASYNC_CLOSE:
            self._ignore(Code.ASYNC_STRAY_CLOSE, tag, tag_place)
        elif self._open:
            self._open = False
            self._append(Sync())
            readings.append(Sync())
        else:
            self._ignore(Code.SYNC_IDLE, tag, tag_place)
        return readings

    def close(self, *, cut: bool = False) -> list[Reading]:
        """End the thread: the beginning of a promise is text, unless the thread was `cut`."""
        if cut:
            self._values = None
        readings = self._break_promise(Code.TAG_CUT)
        self._end_text()
        return readings

    def _continue_promise(self, tag: str) -> list[Reading]:
        """Read the next tag token of a promise. One that no promise began is ignored."""
        if self._values is None:
            return []
        if tag == PROMISE_TOKENS:
            self._values.append("")
            return self._extend_promise(self._values, "")
        values = self._values
        self._values = None
        source = promise_source(values)
        if len(values) > 2:
            self._ignore(Code.ATTRIBUTES_BAD, source, self._promise_place)
            return []
        promise, codes = make_promise(source, dict(zip(("topic", "tokens"), values, strict=False)))
        for code in codes:
            self._report(code, self._promise_place)
        self._append(promise)
        self._open = True
        return [promise]

    def _extend_promise(self, values: list[str], text: str) -> list[Reading]:
        """Add text to the value that is coming in; a tag that is longer than `MAX_TAG` is text."""
        values[-1] += text
        return self._break_promise(Code.TAG_BROKEN) if len(promise_source(values)) > MAX_TAG else []

    def _break_promise(self, code: Code) -> list[Reading]:
        """Give up a promise that is coming in, if there is one: its values are text."""
        if self._values is None:
            return []
        text = "".join(self._values)
        self._values = None
        self._report(code, self._promise_place)
        return self._write(text)


class ChunkParser(_ThreadNodes):
    """Reads a chunk's thread. It starts inside the chunk and is over with its `</async>`.

    A promise or sync ends it too: the thread omitted `</async>`. The white space and the list marker in front
    of a promise or sync are left out, and so is a list marker in front of `</async>`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._over = False
        self._marker = ""  # white space and a list marker at the end of its text, which may yet be left out

    def feed_text(self, text: str) -> list[Reading]:
        """Read more text."""
        if self._over or not text:
            return []
        self._position.advance(text)
        if self._marker or not text[-1].isalpha():
            text, self._marker = split_marker(self._marker + text)
        return self._write(text)

    def feed_tag(self, tag: str) -> list[Reading]:
        """Read a tag token."""
        if self._over:
            return []
        tag_place = self._position.place
        self._position.advance(tag)
        if tag in (PROMISE_OPEN, SYNC):
            self._report(Code.PROMISE_NESTED if tag == PROMISE_OPEN else Code.SYNC_NESTED, tag_place)
            # A number alone may belong to the text; any other marker began an item of main's list.
            readings = self._end_marker() if self._marker.rstrip()[-1:].isdigit() else []
            return [*readings, self._end("nested")]
        if tag == ASYNC_CLOSE:
            if self._marker.strip() and not self._marker.rstrip()[-1].isdigit():
                return [self._end("nested")]
            return [*self._end_marker(), self._end("writer")]
        if tag == ASYNC_OPEN:
            readings = self._end_marker()
            self._ignore(Code.ASYNC_STRAY, tag, tag_place)
            return readings
        return []  # a later tag token of a promise: a chunk has no promises

    def close(self, *, cut: bool = False) -> list[Reading]:
        """End the thread; a chunk that is not over is unclosed."""
        if self._over:
            return []
        readings = self._end_marker()
        self._report(Code.ASYNC_UNCLOSED, self._position.place)
        self._end_text()
        return readings

    def _end_marker(self) -> list[Reading]:
        marker = self._marker
        self._marker = ""
        return self._write(marker)

    def _end(self, closed_by: ClosedBy) -> ChunkEnded:
        self._over = True
        self._end_text()
        return ChunkEnded(closed_by)


ThreadParser = MainParser | ChunkParser
"""A reader of a thread: text in pieces (`feed_text`), and tag tokens (`feed_tag`).

Nothing in the text is a tag. However a text is cut into pieces, the readings are the same once adjacent text
is joined.
"""
