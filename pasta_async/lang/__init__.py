"""PASTA-LANG: read, check and write annotated answers, and unroll them into what each thread sees.

Pure: no I/O, no asyncio. docs/language.md describes the language.
"""

from pasta_async.lang.attributes import MAX_ESTIMATE
from pasta_async.lang.check import check, parse
from pasta_async.lang.diagnostics import MAX_DIAGNOSTICS, MESSAGES, MILD, Code, Diagnostic
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
from pasta_async.lang.events import (
    ChunkClosed,
    ChunkOpened,
    Event,
    IgnoredTag,
    PromiseOpened,
    SyncReached,
    TextDelta,
)
from pasta_async.lang.parser import Parser
from pasta_async.lang.views import Segment, View, segments, views

__all__ = [
    "ASYNC_CLOSE",
    "ASYNC_OPEN",
    "MAX_DIAGNOSTICS",
    "MAX_ESTIMATE",
    "MAX_TAG",
    "MESSAGES",
    "MILD",
    "PROMISE_CLOSE",
    "PROMISE_OPEN",
    "PROMISE_TOKENS",
    "SYNC",
    "TAG_TOKENS",
    "Chunk",
    "ChunkClosed",
    "ChunkOpened",
    "ClosedBy",
    "Code",
    "Diagnostic",
    "Document",
    "Event",
    "Ignored",
    "IgnoredTag",
    "Node",
    "Parser",
    "Promise",
    "PromiseOpened",
    "Segment",
    "Sync",
    "SyncReached",
    "Text",
    "TextDelta",
    "View",
    "check",
    "escape",
    "parse",
    "segments",
    "views",
]
