"""Whole texts: read one, or say what is wrong with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.lang.parser import Parser

if TYPE_CHECKING:
    from pasta_async.lang.diagnostics import Diagnostic
    from pasta_async.lang.document import Document

__all__ = ["check", "parse"]

_PIECE = 1 << 16  # events of a long text are dropped as it goes


def parse(text: str, strict: bool = False) -> Document:
    """Read a document in its written form.

    Args:
        text: The written form; anything is accepted unless `strict`.
        strict: Raise at the first diagnostic, except for mild ones (`MILD`), which are about style.

    Returns:
        The document, with what was found wrong in `diagnostics` (at most `MAX_DIAGNOSTICS`).

    Raises:
        ParseError: In strict reading, with the diagnostic.
    """
    parser = Parser(strict=strict, whole=True)
    for start in range(0, len(text), _PIECE):
        parser.feed(text[start : start + _PIECE])
    parser.close()
    return parser.document()


def check(text: str) -> list[Diagnostic]:
    """What is wrong with a document in its written form, in the order of the text."""
    return list(parse(text).diagnostics)
