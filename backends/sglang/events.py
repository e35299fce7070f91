"""From SGLang's answers to the pieces of the backend protocol.

SGLang answers in events that hold some ids and some text: all so far, or only what is new. The protocol wants
each tag id alone, with its written form, and all text before it. The text of an event is cut accordingly.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pasta_async.backends.sglang.replies import Count, Id, Listed, Reply, read
from pasta_async.errors import BackendProtocolError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import Piece
from pasta_async.results import FinishReason
from pasta_async.tag_tokens import TagIds

if TYPE_CHECKING:
    from pasta_async.backends.tokenization import Detokenizer

Detokenize = Callable[[list[list[int]]], Awaitable[list[str]]]
Run = tuple[tuple[int, ...], str]

_TAGS = re.compile(f"({'|'.join(map(re.escape, TAG_TOKENS))})")


class Finish(Reply):
    """Why SGLang ended a request."""

    type: Literal["stop", "length", "abort"]
    matched: Id | str | Listed[Id] | None = None
    """The id or the text at which it stopped."""


class _Meta(Reply):
    id: str | None = None
    finish_reason: Finish | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count


class _Event(Reply):
    text: str | None = None
    output_ids: Listed[Id]
    meta_info: _Meta


class Increment(NamedTuple):
    """What one event adds."""

    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    end: int | None
    """The end-of-text id that ended the request, where one did."""
    prompt_tokens: int | None
    cached_tokens: int | None


class Increments:
    """Reads what is new from events in SGLang's cumulative or incremental form.

    Args:
        vocab_size: Ids are below this.
        incremental: The form: only what is new, or all so far.
        has_text: Whether events hold text; those of a server without a tokenizer do not.
        stop_ids: Ids that the request asked to stop at; another one that ends it is end-of-text.
        request: The id of the request whose events they have to be.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        incremental: bool,
        has_text: bool = True,
        stop_ids: Sequence[int] = (),
        request: str | None = None,
    ) -> None:
        self._vocab_size, self._incremental, self._has_text = vocab_size, incremental, has_text
        self._stop_ids, self._request = stop_ids, request
        self._ids = self._text = 0  # how many, and characters, so far

    def take(self, event: dict[str, Any]) -> Increment:
        """What is new in an event.

        Raises:
            BackendProtocolError: The event has another form than SGLang's, is another request's, has ids that
                cannot be, or another number of them than were decoded: an event was lost, or came twice.
        """
        new, done = self._read(event)
        if not self._incremental:
            new = new._replace(ids=new.ids[self._ids :], text=new.text[self._text :])
        elif new.finish_reason == "abort" and self._ids + len(new.ids) != done:
            # A request that waited: its last id and all its text once more.
            new = new._replace(ids=(), text=new.text[self._text :])
        self._ids += len(new.ids)
        self._text += len(new.text)
        if self._ids != done and new.finish_reason != "abort":
            raise BackendProtocolError(f"{done} tokens were decoded, but {self._ids} arrived")
        return new

    def _read(self, event: dict[str, Any]) -> tuple[Increment, int]:
        """What stands in an event, and how many tokens were decoded so far."""
        said = read(_Event, event, "an event")
        meta, reason = said.meta_info, said.meta_info.finish_reason
        text = said.text if self._has_text else ""
        matched = reason.matched if reason and isinstance(reason.matched, int) else None
        if text is None:
            raise BackendProtocolError("an event without its text")
        if self._request is not None and meta.id not in (None, self._request):
            raise BackendProtocolError("an event of another request")
        if max(matched or 0, *said.output_ids, 0) >= self._vocab_size:
            raise BackendProtocolError(f"an event with ids above the vocabulary's {self._vocab_size}")
        end = None if matched in self._stop_ids else matched
        why = reason.type if reason else None
        new = Increment(tuple(said.output_ids), text, why, end, meta.prompt_tokens, meta.cached_tokens)
        return new, meta.completion_tokens


def _with_counts(pieces: list[Piece], new: Increment) -> list[Piece]:
    """Pieces of an increment, the last one with its finish reason and its counts."""
    if not pieces and new.finish_reason:
        pieces = [Piece((), "")]
    if pieces:
        last = pieces[-1]
        pieces[-1] = Piece(last.ids, last.text, new.finish_reason, new.prompt_tokens, new.cached_tokens)
    return pieces


class RemoteReader:
    """Cuts increments into pieces by the text that they hold.

    Args:
        tags: Ids of the tag tokens, if the model has them.
        detokenize: Texts of several lists of ids, asked where an event does not tell which text is whose.
    """

    def __init__(self, tags: TagIds | None, detokenize: Detokenize) -> None:
        self._written = dict(zip(tags, TAG_TOKENS, strict=True)) if tags else {}
        self._detokenize = detokenize
        self._ids: list[int] = []  # since the last tag
        self._text = 0  # characters of theirs in earlier pieces
        self._ahead = 0  # characters in earlier pieces that the server had not sent yet

    async def read(self, new: Increment) -> list[Piece]:
        """The pieces of an increment; the last one carries the finish reason and the counts."""
        end = ""
        if new.end is not None:
            [end] = await self._detokenize([[new.end]])
        text = new.text.removesuffix(end)
        unread = text[self._ahead :]
        self._ahead = max(0, self._ahead - len(text))
        runs = self._by_text(new.ids, unread)
        if runs is None:
            runs = await self._by_ids(new, end)
            self._ahead = max(0, self._ahead + sum(len(text) for _, text in runs) - len(unread))
        if len(runs) > 1:
            self._ids, self._text = [], 0
        self._ids += runs[-1][0]
        self._text += len(runs[-1][1])
        return _with_counts([Piece(ids, text) for ids, text in runs if ids or text], new)

    def _by_text(self, ids: tuple[int, ...], text: str) -> list[Run] | None:
        """Runs of ids with their texts, each tag id one of its own, if the text alone tells."""
        runs = self._runs(ids)
        if len(ids) == 1 and len(runs) > 1:  # what lagged behind may spell a tag, too
            tag = self._written[ids[0]]
            return [((), text.removesuffix(tag)), (ids, tag), ((), "")] if text.endswith(tag) else None
        parts = _TAGS.split(text) if len(runs) > 1 else [text]
        if parts[1::2] != [self._written[i] for (i,) in runs[1::2]]:
            return None
        return list(zip(runs, parts, strict=True))

    async def _by_ids(self, new: Increment, end: str) -> list[Run]:
        """The same where the model also spelled a tag, or the text of one is not complete yet."""
        first, *others = self._runs(new.ids)
        known, *texts = await self._detokenize([[*self._ids, *first], *map(list, others)])
        texts = [known[self._text :], *texts]
        # What is not complete yet comes later.
        texts[-1] = texts[-1].removesuffix(end) if new.finish_reason else texts[-1].rstrip("\ufffd")
        return list(zip((first, *others), texts, strict=True))

    def _runs(self, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Ids before, between and behind tags, and at odd places the tags."""
        tags = [at for at, i in enumerate(ids) if i in self._written]
        edges = [0, *(edge for at in tags for edge in (at, at + 1)), len(ids)]
        return [ids[start:end] for start, end in pairwise(edges)]


class LocalReader:
    """Cuts increments into pieces by the model's own tokenizer; what text they hold is not looked at.

    Args:
        detokenizer: Gives the text of ids as they come.
        tags: Ids of the tag tokens, if the model has them.
    """

    def __init__(self, detokenizer: Detokenizer, tags: TagIds | None) -> None:
        self._detokenizer, self._tags = detokenizer, tags

    async def read(self, new: Increment) -> list[Piece]:
        """The pieces of an increment; the last one carries the finish reason and the counts."""
        pieces = list(self._pieces(new))
        if new.finish_reason and (rest := self._detokenizer.flush()):
            pieces.append(Piece((), rest))
        return _with_counts(pieces, new)

    def _pieces(self, new: Increment) -> Iterator[Piece]:
        ids: list[int] = []
        text = ""
        plain = len(new.ids) if new.end is None else len(new.ids) - 1
        for at, i in enumerate(new.ids):
            if self._tags is not None and i in self._tags:
                text += self._detokenizer.flush()
                if ids or text:
                    yield Piece(tuple(ids), text)
                yield Piece((i,), self._tags.written(i))
                ids, text = [], ""
            else:
                ids.append(i)
                text += self._detokenizer.add(i) if at < plain else ""
        if ids:
            yield Piece(tuple(ids), text)
