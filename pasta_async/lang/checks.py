"""Documents read as a whole, leniently or strictly."""

from __future__ import annotations

from pasta_async.errors import PastaError
from pasta_async.lang.diagnostics import STYLE_CODES, Diagnostic
from pasta_async.lang.document import Document
from pasta_async.lang.parser import read_document

__all__ = ["ParseError", "parse"]


class ParseError(PastaError):
    """Strict reading met a malformed document."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


def parse(text: str, strict: bool = False) -> Document:
    """Read a document in its written form.

    Args:
        text: The written form; anything is accepted unless `strict`.
        strict: Raise at the first diagnostic, except for those about style (`STYLE_CODES`).

    Returns:
        The document; its `diagnostics` (at most `MAX_DIAGNOSTICS`), in the order of the text, say what is
        wrong with it.

    Raises:
        ParseError: In strict reading, with the diagnostic.
    """
    document = read_document(text)
    if strict:
        for diagnostic in document.diagnostics:
            if diagnostic.code not in STYLE_CODES:
                raise ParseError(diagnostic)
    return document
