"""The incremental reader of PASTA-LANG: pieces of text in, events and nodes out."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, cast

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
from pasta_async.lang.lexer import Lexer, Place, Tag, read_attributes, read_promise, split_marker

__all__ = [
    "ChunkBegun",
    "ChunkEnded",
    "IgnoredRead",
    "Parser",
    "PromiseRead",
    "Reading",
    "SyncRead",
]

_PIECE = 1 << 16  # readings of a long text are dropped as it goes
_ignored = lru_cache(256)(Ignored)  # equal tags share one node: a hostile text may be nothing but them


class PromiseRead(NamedTuple):
    """A promise that counts."""

    promise: Promise
    end: int
    """Offset in the fed characters just behind the tag (as in every reading)."""


class ChunkBegun(NamedTuple):
    """The writer itself starts to keep the promise just made."""

    end: int
    gap: str = ""
    """White space between the promise and `<async>`; it is visible, and reported nowhere else."""


class ChunkEnded(NamedTuple):
    """The chunk ends: by `</async>`, or a thread's right before a promise or sync that it wrote instead."""

    end: int
    closed_by: ClosedBy = "writer"


class SyncRead(NamedTuple):
    """A `<sync/>` with open promises."""

    end: int
    source: str


class IgnoredRead(NamedTuple):
    """A tag without effect."""

    source: str
    end: int


Reading = str | PromiseRead | ChunkBegun | ChunkEnded | SyncRead | IgnoredRead
"""What a parser reports while it reads; the events that users see (`pasta_async.events`) come from it.

A `str` is visible text: of the chunk while one is open, of main otherwise.
"""


class Parser:
    """Reads one thread's text, or a whole document, piece by piece.

    Args:
        part: What the text is.
            "document": all of it, so a promise without a chunk is worth a diagnostic.
            "main": what the main thread writes. The rest of a piece in which a sync takes effect is dropped:
            its writer has to wait there, and what it wrote behind was written without the chunks.
            "chunk": what a chunk's thread writes. It starts inside the chunk and is over with its `</async>`.
            A promise or sync ends it too: the thread forgot that tag, and white space and a list marker
            before it are left out. So is a list marker before `</async>`.
    """

    def __init__(self, part: Literal["document", "main", "chunk"] = "document") -> None:
        self.diagnostics: list[Diagnostic] = []
        """What was found so far, in the order it was found; at most `MAX_DIAGNOSTICS`."""
        self.end: int | None = None
        """Of a chunk: the offset at which the text was over (`ChunkEnded.end`). No more is read."""
        self._inside, self._main, self._whole = part == "chunk", part == "main", part == "document"
        self._marker = ""  # white space and a list marker at the end of its text, which may yet be left out
        self._lexer = Lexer()
        self._nodes: list[Node] = []
        self._target = self._nodes  # where nodes go: these, or those of the open chunk
        self._in_chunk = self._inside
        self._opened = ASYNC_OPEN  # how the open chunk starts, and what stood before that
        self._opened_gap = ""
        self._gap = False  # whether nothing but white space came since the last promise
        self._place = Place(0, 1, 1)  # of that promise
        self._open = False  # whether a promise was made since the last sync
        self._text: list[str] = []  # since the last node
        self._values: list[str] | None = None  # of the promise whose tag ids are coming in
        self._values_place = self._place

    @property
    def offset(self) -> int:
        """Characters fed so far."""
        return self._lexer.offset

    @property
    def held(self) -> str:
        """The beginning of what may become a tag, if the text so far ends with one."""
        return self._lexer.held

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far; until `close()` the last one may grow, and what is held back is not in it."""
        text = "".join(self._text)
        target = [*self._target, Text(text)] if text else self._target
        if self._target is self._nodes:
            return tuple(target)
        return (*self._nodes[:-1], self._kept(target, "interrupted"))

    def document(self) -> Document:
        """The nodes so far as a document, its diagnostics in the order of the text."""
        return Document(self.nodes, tuple(sorted(self.diagnostics, key=lambda found: found.offset)))

    def feed(self, piece: str) -> list[Reading]:
        """Read one more piece of text, of any length, with the tags in it.

        Returns:
            What happened. For any cut of a text into pieces the events are the same, once adjacent
            text is joined.
        """
        lexer = self._lexer
        if "<" not in piece and not lexer.held:
            return self.feed_text(piece)
        if self.end is not None:
            return []
        at = (lexer.held + piece).find(PROMISE_OPEN) if self._inside else -1
        if at < 0:
            return self._read(piece)
        events = self._read(piece[: max(0, at + 1 - len(lexer.held))])  # up to its "<", which is held
        if self.end is None:
            self._nested(Code.PROMISE_NESTED, lexer.drop(), events)
        return events

    def _read(self, piece: str) -> list[Reading]:
        lexer, events = self._lexer, list[Reading]()
        for lexeme in lexer.feed(piece):
            if isinstance(lexeme, str):
                self._on_text(lexeme, events)
            elif isinstance(lexeme, Tag):
                self._on_tag(lexeme, events)
                if self.end is not None:
                    break
                if self._main and isinstance(events[-1], SyncRead):
                    lexer.close()
                    break
            else:
                self._end_gap(events)
                self._report(Code.TAG_BROKEN, lexeme)
        return events

    def feed_text(self, piece: str) -> list[Reading]:
        """Read one more piece of a trained model's text, in which nothing is a tag: its tags are ids.

        A parser is fed either text with tags (`feed`), or text and tags apart (this and `feed_tag`).
        """
        events: list[Reading] = []
        if not piece or self.end is not None:
            return events
        self._lexer.skip(piece)
        if self._values is not None:
            self._values[-1] += piece
            if len(promise_source(self._values)) > MAX_TAG:
                self._break_tag(events)
        else:
            self._on_text(piece, events)
        return events

    def feed_tag(self, token: str) -> list[Reading]:
        """Read a tag token (one of `TAG_TOKENS`) that came as its id."""
        events: list[Reading] = []
        if self.end is not None:
            return events
        place = self._lexer.place
        self._lexer.skip(token)
        if token in (PROMISE_TOKENS, PROMISE_CLOSE):
            self._on_promise_token(token, events)
            return events
        self._break_tag(events)
        if token == PROMISE_OPEN and self._inside:
            self._nested(Code.PROMISE_NESTED, place, events)
        elif token == PROMISE_OPEN:
            self._values, self._values_place = [""], place
        else:
            name = token.strip("</>")
            tag = Tag(
                token, name, token.startswith("</"), token[1 + len(name) : -1], place, self._lexer.offset
            )
            self._on_tag(tag, events)
        return events

    def _on_promise_token(self, token: str, events: list[Reading]) -> None:
        """A promise's tag goes on, or ends; of a tag that never began nothing is shown."""
        if self._values is None:
            return
        if token == PROMISE_TOKENS:
            self._values.append("")
        else:
            values, self._values = tuple(self._values), None
            place, end = self._values_place, self._lexer.offset
            self._on_tag(Tag(promise_source(values), "promise", False, "", place, end, values), events)

    def _break_tag(self, events: list[Reading], code: Code = Code.TAG_BROKEN) -> None:
        """The tag ids that came in make no tag: what stood between them is text."""
        if self._values is not None:
            text, self._values = "".join(self._values), None
            if text:
                self._on_text(text, events)
            self._report(code, self._values_place)

    def close(self, *, cut: bool = False) -> list[Reading]:
        """End the text: what was held back comes out, and an open chunk ends (`closed_by="end"`).

        Args:
            cut: The writer was interrupted: forget what may begin a tag rather than show it as text.
        """
        events: list[Reading] = []
        if self.end is not None:
            return events
        if cut:
            self._values = None
        self._break_tag(events, Code.TAG_CUT)
        text, tag, end = self._lexer.close()
        if text and not cut:
            self._on_text(text, events)
        self._end_gap(events)
        if tag and not cut:
            self._report(Code.TAG_CUT, tag)
        if self._in_chunk:
            self._report(Code.ASYNC_UNCLOSED, end)
            self._end_chunk("end")
        self._end_text()
        return events

    def _report(self, code: Code, place: Place) -> None:
        diagnostic = Diagnostic(code, *place)
        if len(self.diagnostics) < MAX_DIAGNOSTICS:
            self.diagnostics.append(diagnostic)

    def _take_text(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text

    def _add_text(self, piece: str) -> None:
        """Join pieces as they grow: one of a single character takes up to eighty bytes."""
        pieces = self._text
        pieces.append(piece)
        while len(pieces) > 1 and len(pieces[-2]) <= len(pieces[-1]):
            last = pieces.pop()
            pieces[-1] += last

    def _end_text(self) -> None:
        if text := self._take_text():
            self._target.append(Text(text))

    def _on_text(self, text: str, events: list[Reading]) -> None:
        if self._gap:
            if text.isspace():
                self._add_text(text)
                return
            self._end_gap(events)
        if self._inside and (self._marker or not text[-1].isalpha()):
            text, self._marker = split_marker(self._marker + text)
        if text:
            self._add_text(text)
            events.append(text)

    def _end_gap(self, events: list[Reading]) -> None:
        """No chunk follows the promise, no tag ends the chunk: what was held back is text like any other."""
        if self._marker:
            events.append(self._marker)
            self._add_text(self._marker)
            self._marker = ""
        if not self._gap:
            return
        self._gap = False
        if self._whole:
            self._report(Code.PROMISE_OPEN, self._place)
        if text := "".join(self._text):
            events.append(text)

    def _on_tag(self, tag: Tag, events: list[Reading]) -> None:
        """Do what a tag says; a code says why it is to be ignored instead."""
        opening = {"promise": self._on_promise, "async": self._on_async, "sync": self._on_sync}
        act = self._on_close if tag.closing else opening[tag.name]
        if code := act(tag, events):
            self._end_gap(events)
            self._report(code, tag.place)
            self._append(_ignored(tag.source))
            events.append(IgnoredRead(tag.source, tag.end))

    def _on_promise(self, tag: Tag, events: list[Reading]) -> Code | None:
        if self._in_chunk:
            return self._nested(Code.PROMISE_NESTED, tag.place, events)
        promise, codes = read_promise(tag)
        if promise is None:
            return codes[0]
        self._end_gap(events)
        for code in codes:
            self._report(code, tag.place)
        self._append(promise)
        self._open = True
        self._gap = not self._main  # main's own text goes on; its chunks are other threads'
        self._place = tag.place
        events.append(PromiseRead(promise, tag.end))
        return None

    def _on_async(self, tag: Tag, events: list[Reading]) -> Code | None:
        if not self._gap or self._main:
            return Code.ASYNC_STRAY
        attributes = read_attributes(tag.rest)
        if isinstance(attributes, Code):
            return attributes
        if tag.rest.endswith("/"):  # an opening tag that would swallow all that follows is not what it says
            return Code.ATTRIBUTES_BAD
        self._opened, self._opened_gap = tag.source, self._take_text()
        if self._opened_gap:
            self._report(Code.ASYNC_APART, tag.place)
        if tag.source != ASYNC_OPEN:
            self._report(Code.TAG_FORM, tag.place)
        self._gap = False
        self._in_chunk, self._target = True, []
        events.append(ChunkBegun(tag.end, self._opened_gap))
        return None

    def _on_close(self, tag: Tag, events: list[Reading]) -> Code | None:
        if tag.name != "async":
            return Code.TAG_STRAY_CLOSE
        if tag.source != ASYNC_CLOSE:
            return Code.ATTRIBUTES_BAD
        if not self._in_chunk:
            return Code.ASYNC_STRAY_CLOSE
        if self._inside and self._marker.strip() and not self._marker[-1].isdigit():
            self._end_thread(tag.place, events)  # before the list's next item
            return None
        self._end_gap(events)
        self._end_chunk("writer")
        if self._inside:
            self.end = tag.end
        events.append(ChunkEnded(tag.end))
        return None

    def _nested(self, code: Code, place: Place, events: list[Reading]) -> Code | None:
        """A promise or sync inside a chunk ends a thread's text; in a whole document it is to be ignored."""
        if not self._inside:
            return code
        self._report(code, place)
        if self._marker[-1:].isdigit():  # a number alone may be what it says
            self._end_gap(events)
        self._end_thread(place, events)
        return None

    def _end_thread(self, place: Place, events: list[Reading]) -> None:
        """A chunk's thread went on past its end: what dangles before that place is left out."""
        self._marker = ""
        self._end_chunk("nested")
        self.end = place.offset
        events.append(ChunkEnded(self.end, "nested"))

    def _end_chunk(self, closed_by: ClosedBy) -> None:
        self._end_text()
        if self._inside:
            return
        self._nodes[-1] = self._kept(self._target, closed_by)
        self._in_chunk, self._target = False, self._nodes

    def _kept(self, nodes: list[Node], closed_by: ClosedBy) -> Promise:
        """The last promise, kept by a chunk of these nodes."""
        promise = cast("Promise", self._nodes[-1])
        kept = tuple(node for node in nodes if isinstance(node, Text | Ignored))
        chunk = Chunk(kept, self._opened, closed_by)
        return Promise(promise.topic, promise.tokens, chunk, promise.source, self._opened_gap)

    def _on_sync(self, tag: Tag, events: list[Reading]) -> Code | None:
        if self._in_chunk:
            return self._nested(Code.SYNC_NESTED, tag.place, events)
        attributes = read_attributes(tag.rest)
        if isinstance(attributes, Code):
            return attributes
        if attributes:
            return Code.ATTRIBUTE_UNKNOWN
        if not self._open:
            return Code.SYNC_IDLE
        self._end_gap(events)
        if tag.source != SYNC:
            self._report(Code.TAG_FORM, tag.place)
        self._append(Sync(tag.source))
        self._open = False
        events.append(SyncRead(tag.end, tag.source))
        return None

    def _append(self, node: Node) -> None:
        self._end_text()
        self._target.append(node)


def read_document(text: str) -> Document:
    """Read a document in its written form; whatever is wrong with it is in its `diagnostics`."""
    parser = Parser()
    for start in range(0, len(text), _PIECE):
        parser.feed(text[start : start + _PIECE])
    parser.close()
    return parser.document()
