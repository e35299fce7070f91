"""Lengths in tokens, and what they say about speed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pasta_async.lang import Document, Promise, Segment, views

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CountTokens",
    "critical_path",
    "in_tens",
    "recount",
    "rough_tokens",
    "text_speedup",
    "token_counter",
]

CountTokens = Callable[[str], int]
"""Tokens of a text, without special ones."""

_PIECE = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]+|_+|\n\s*", re.UNICODE)
_LETTERS = 8


def rough_tokens(text: str) -> int:
    """About the tokens that a vocabulary of some 100,000 makes of English text, for want of a tokenizer.

    A word is one token for every 8 letters begun, three digits are one, so is a run of punctuation or of line
    breaks. Ratios of lengths, such as a speed-up, hardly depend on the tokenizer.
    """
    return sum(-(-len(piece) // _LETTERS) if piece[0].isalpha() else 1 for piece in _PIECE.findall(text))


def token_counter(folder: Path | str | None) -> CountTokens:
    """Counts tokens by the `tokenizer.json` of a model folder; None: `rough_tokens`.

    Raises:
        UnsupportedModelError: The folder has no tokenizer that can be used.
    """
    if folder is None:
        return rough_tokens
    from pasta_async.backends.tokenization import TextCodec  # needs the extra `local`

    codec = TextCodec.from_folder(folder)
    return lambda text: len(codec.encode(text))


def in_tens(tokens: int) -> int:
    """A length as a promise states it: rounded up to tens, at least ten."""
    return 10 * max(1, -(-tokens // 10))


def recount(document: Document, count: CountTokens) -> Document:
    """The same document, its tags in their exact form, each estimate made from the length of its chunk."""
    nodes = [
        replace(node, tokens=in_tens(count(node.chunk.text)), source="")
        if isinstance(node, Promise) and node.chunk is not None
        else node
        for node in document.nodes
    ]
    return Document(tuple(nodes))


def critical_path(document: Document, count: CountTokens) -> int:
    """Tokens on the longest chain that has to be decoded one after another, by `views(document)`.

    A chunk's thread starts when main has written its promise; a round is over when main is at its sync and
    every chunk is there. Tags are counted (each tag token is one), forced tokens and end-of-text are not.
    """
    measure = lru_cache(maxsize=None)(count)

    def length(parts: Iterable[Segment]) -> int:
        return sum(1 if part.is_tag else measure(part.text) for part in parts)

    path = round_length = joined = 0
    for view in views(document):
        if view.thread == 0:  # the round before this stretch of main is over
            path, joined = path + round_length, length(view.context)
            round_length = length(view.target)
        else:
            started = length(view.context) - joined - 1  # less the `<async>` that is forced
            round_length = max(round_length, started + length(view.target))
    return path + round_length


def text_speedup(document: Document, count: CountTokens) -> float:
    """Tokens of the text without tags / critical path: 1 for a plain answer.

    For an annotation this is the theoretical speed-up, since its baseline is the answer that was annotated.
    """
    path = critical_path(document, count)
    return count(document.text) / path if path else 1.0
