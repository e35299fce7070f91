"""Cutting what is played into pieces, and finding where a request ends."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from pasta_async.protocol import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from pasta_async.backends.scripted.script import Stretch
    from pasta_async.backends.scripted.words import Tokenizer
    from pasta_async.protocol import DecodeRequest, FinishReason

__all__ = ["extent", "pieces", "unfinished"]


def extent(stretch: Stretch, request: DecodeRequest, end_id: int, limit: int) -> tuple[int, FinishReason]:
    """How many tokens of a stretch a request hears, and why it ends there."""
    ends = {*request.stop_ids, end_id}
    count = next(n for n, token in enumerate(stretch.ids, 1) if token in ends)
    if request.stop_text:
        count = min(count, _first_with(stretch, request.stop_text))
    return (count, "stop") if count <= limit else (limit, "length")


def _first_with(stretch: Stretch, texts: tuple[str, ...]) -> int:
    """Tokens until the first of some texts is complete."""
    whole = "".join(stretch.texts)
    places = [place + len(text) for text in texts if (place := whole.find(text)) >= 0]
    if not places:
        return len(stretch.ids)
    lengths = accumulate(map(len, stretch.texts))
    return next(n for n, length in enumerate(lengths, 1) if length >= min(places))


def pieces(stretch: Stretch, count: int, size: int, tags: Set[int]) -> Iterator[Piece]:
    """The first tokens of a stretch in pieces of at most some size, each tag alone."""
    ids, texts = stretch.ids, stretch.texts
    start = 0
    for at in range(count):
        is_tag = ids[at] in tags
        if start < at and (is_tag or at - start >= size):
            yield Piece(ids[start:at], "".join(texts[start:at]))
            start = at
        if is_tag or size == 1:
            yield Piece((ids[at],), texts[at])
            start = at + 1
    if start < count:
        yield Piece(ids[start:count], "".join(texts[start:count]))


def unfinished(stretch: Stretch, count: int, tokenizer: Tokenizer) -> str:
    """The text of a character that ending after so many tokens cuts in two."""
    since = count
    while since and not stretch.texts[since - 1]:
        since -= 1
    return tokenizer.decode(stretch.ids[since:count])
