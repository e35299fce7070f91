"""From SGLang's answers to the pieces of the backend protocol.

SGLang answers in events that hold some ids and some text: all so far, or only what is new. The protocol wants
each tag id alone, with its written form, and all text before it. The text of an event is cut accordingly.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pasta_async.errors import BackendProtocolError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import Piece

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pasta_async.protocol import FinishReason, TagIds

    Detokenize = Callable[[list[list[int]]], Awaitable[list[str]]]

__all__ = ["Increment", "Increments", "PieceReader"]

_TAGS = re.compile("|".join(map(re.escape, TAG_TOKENS)))
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class Increment(NamedTuple):
    """What one event adds."""

    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    matched: int | None
    """The id that ended the request, where an id did."""
    prompt_tokens: int | None
    cached_tokens: int | None


class Increments:
    """Reads what is new from events in SGLang's cumulative or incremental form.

    Args:
        incremental: The form, where the server told it. Otherwise it is told by the count of tokens: an event
            that holds as many ids as were decoded so far holds all of them.
        has_text: Whether events hold text; those of a server without a tokenizer do not.
    """

    def __init__(self, *, incremental: bool | None = None, has_text: bool = True) -> None:
        self._incremental = incremental
        self._has_text = has_text
        self._ids = 0
        self._text = 0

    def take(self, event: dict[str, Any]) -> Increment:
        """What is new in an event.

        Raises:
            BackendProtocolError: The event lacks what SGLang puts there, or takes back what it said.
        """
        try:
            ids = [int(i) for i in event["output_ids"]]
            text = str(event["text"] if self._has_text else "")
            meta = cast("dict[str, Any]", event["meta_info"])
            done = int(meta["completion_tokens"])
            reason = cast("dict[str, Any] | None", meta.get("finish_reason"))
            finish_reason = None if reason is None else _FINISH[reason["type"]]
            matched = reason.get("matched") if reason else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BackendProtocolError(
                f"an event of another form than SGLang's ({error!r}): {event!r:.300}"
            ) from error
        if self._ids and not self._is_incremental(len(ids), done):
            if len(ids) < self._ids:
                raise BackendProtocolError(f"an event with {len(ids)} ids after one with {self._ids}")
            ids, text = ids[self._ids :], text[self._text :]
        self._ids += len(ids)
        self._text += len(text)
        return Increment(
            tuple(ids),
            text,
            finish_reason,
            matched if isinstance(matched, int) else None,
            meta.get("prompt_tokens"),
            meta.get("cached_tokens"),
        )

    def _is_incremental(self, ids: int, done: int) -> bool:
        return self._incremental if self._incremental is not None else ids < done


class PieceReader:
    """Cuts increments into pieces.

    Args:
        tags: Ids of the tag tokens, if the model has them.
        stop_ids: Ids the request asked to stop at; another id that ends it is end-of-text.
        detokenize: Texts of several lists of ids, asked where an event does not tell which text is whose.
    """

    def __init__(self, tags: TagIds | None, stop_ids: Sequence[int], detokenize: Detokenize) -> None:
        self._written = dict(zip(tags, TAG_TOKENS, strict=True)) if tags else {}
        self._stop_ids = frozenset(stop_ids)
        self._detokenize = detokenize
        self._ids: list[int] = []
        self._sent = 0  # characters of text in earlier pieces

    async def read(self, new: Increment) -> list[Piece]:
        """The pieces of an increment; the last one carries the finish reason and the counts."""
        if new.matched is not None and new.matched not in self._stop_ids:
            new = new._replace(text=await self._without_end(new))
        cut = await self._cut(new)
        self._ids += new.ids
        self._sent += len(new.text)
        if not cut and new.finish_reason:
            cut = [((), "")]
        pieces = [Piece(ids, text) for ids, text in cut]
        if pieces:
            pieces[-1] = pieces[-1]._replace(
                finish_reason=new.finish_reason,
                prompt_tokens=new.prompt_tokens,
                cached_tokens=new.cached_tokens,
            )
        return pieces

    async def _without_end(self, new: Increment) -> str:
        [end] = await self._detokenize([[cast("int", new.matched)]])
        return new.text.removesuffix(end)

    async def _cut(self, new: Increment) -> list[tuple[tuple[int, ...], str]]:
        """Runs of ids with their texts, each tag id a run of its own."""
        tags = [(at, self._written[i]) for at, i in enumerate(new.ids) if i in self._written]
        if not tags:
            return [(new.ids, new.text)] if new.ids or new.text else []
        starts = self._in_text(new, tags)
        if starts is None:
            starts = await self._by_detokenizing(new, tags)
        runs: list[tuple[tuple[int, ...], str]] = []
        ids_at = text_at = 0
        for (at, tag), start in zip(tags, starts, strict=True):
            runs += [(new.ids[ids_at:at], new.text[text_at:start]), ((new.ids[at],), tag)]
            ids_at, text_at = at + 1, start + len(tag)
        runs.append((new.ids[ids_at:], new.text[text_at:]))
        return [run for run in runs if run[0] or run[1]]

    def _in_text(self, new: Increment, tags: Sequence[tuple[int, str]]) -> list[int] | None:
        """Where the tags begin in the text, if the text alone tells."""
        if len(new.ids) == 1:
            tag = tags[0][1]
            return [len(new.text) - len(tag)] if new.text.endswith(tag) else None
        found = list(_TAGS.finditer(new.text))
        return [m.start() for m in found] if [m[0] for m in found] == [tag for _, tag in tags] else None

    async def _by_detokenizing(self, new: Increment, tags: Sequence[tuple[int, str]]) -> list[int]:
        """The same where the model also spelled a tag, or its text is not complete yet."""
        before = await self._detokenize([[*self._ids, *new.ids[:at]] for at, _ in tags])
        for shift in (0, 1, -1):  # a tokenizer may drop the space at the very beginning
            starts = [len(text) + shift - self._sent for text in before]
            if all(
                new.text.startswith(tag, max(start, 0)) for start, (_, tag) in zip(starts, tags, strict=True)
            ):
                return starts
        raise BackendProtocolError(
            f"cannot tell which text belongs to the tags in ids {list(new.ids)[:50]}, text {new.text!r:.300}"
        )
