"""PASTA-LANG: read, check and write annotated answers, and unroll them into what each thread sees.

Pure: no I/O, no asyncio. docs/language.md describes the language.
"""

from pasta_async.lang.diagnostics import MAX_DIAGNOSTICS, STYLE_CODES, Code, Diagnostic
from pasta_async.lang.document import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_TAG,
    PROMISE_CLOSE,
    PROMISE_OPEN,
    PROMISE_TOKENS,
    SYNC,
    TAG_TOKENS,
    Chunk,
    ClosedBy,
    Document,
    Ignored,
    Node,
    Promise,
    Sync,
    Text,
    escape,
)
from pasta_async.lang.lexer import MAX_ESTIMATE
from pasta_async.lang.parser import (
    ChunkBegun,
    ChunkEnded,
    IgnoredRead,
    Parser,
    PromiseRead,
    Reading,
    SyncRead,
    TextRead,
    check,
    parse,
)
from pasta_async.lang.views import Segment, View, segments, views

__all__ = [
    "ASYNC_CLOSE",
    "ASYNC_OPEN",
    "MAX_DIAGNOSTICS",
    "MAX_ESTIMATE",
    "MAX_TAG",
    "STYLE_CODES",
    "PROMISE_CLOSE",
    "PROMISE_OPEN",
    "PROMISE_TOKENS",
    "SYNC",
    "TAG_TOKENS",
    "Chunk",
    "ChunkEnded",
    "ChunkBegun",
    "ClosedBy",
    "Code",
    "Diagnostic",
    "Document",
    "Reading",
    "Ignored",
    "IgnoredRead",
    "Node",
    "Parser",
    "Promise",
    "PromiseRead",
    "Segment",
    "Sync",
    "SyncRead",
    "Text",
    "TextRead",
    "View",
    "check",
    "escape",
    "parse",
    "segments",
    "views",
]
