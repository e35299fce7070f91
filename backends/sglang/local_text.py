"""Ids to pieces, and text to ids, where the model's tokenizer is at hand: no server is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta_async.backends.tokenization import Detokenizer
from pasta_async.protocol import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pasta_async.backends.sglang.events import Increment
    from pasta_async.backends.tokenization import TextCodec
    from pasta_async.protocol import Message, TagIds

__all__ = ["LocalReader", "LocalWords"]


class LocalWords:
    """The tokenizer and the chat template in a model folder (`pasta_async.backends.sglang.words.Words`).

    Args:
        codec: The model's tokenizer.
        end_ids: Further end-of-text ids.
    """

    def __init__(self, codec: TextCodec, end_ids: Iterable[int] = ()) -> None:
        self._codec = codec
        self._end_ids = tuple(sorted({*codec.end_ids, *end_ids}))

    async def learn(self) -> tuple[TagIds | None, tuple[int, ...]]:
        """Ids of the tags, if the model has them, and of end-of-text."""
        return self._codec.tags, self._end_ids

    async def encode(self, text: str) -> list[int]:
        """Ids of text as data."""
        return self._codec.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Ids of messages by the chat template; what stands in them is data."""
        return self._codec.encode_chat(messages, template_kwargs)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        return self._codec.detokenize(ids)

    def reader(self, stop_ids: Sequence[int]) -> LocalReader:
        """A reader for one request, which asked to stop at these ids."""
        return LocalReader(self._codec, stop_ids)


class LocalReader:
    """Cuts increments into pieces by the model's own tokenizer; what text they hold is not looked at.

    Args:
        codec: The model's tokenizer.
        stop_ids: Ids the request asked to stop at; another id that ends it is end-of-text.
    """

    def __init__(self, codec: TextCodec, stop_ids: Sequence[int]) -> None:
        self._tags = codec.tags
        self._detokenizer = Detokenizer(codec)
        self._stop_ids = frozenset(stop_ids)

    async def read(self, new: Increment) -> list[Piece]:
        """The pieces of an increment; the last one carries the finish reason and the counts."""
        pieces = list(self._pieces(new))
        if new.finish_reason and (rest := self._detokenizer.flush()):
            pieces.append(Piece((), rest))
        if not pieces and new.finish_reason:
            pieces = [Piece((), "")]
        if pieces:
            pieces[-1] = pieces[-1]._replace(
                finish_reason=new.finish_reason,
                prompt_tokens=new.prompt_tokens,
                cached_tokens=new.cached_tokens,
            )
        return pieces

    def _pieces(self, new: Increment) -> Iterator[Piece]:
        ids: list[int] = []
        text: list[str] = []
        ended = new.matched is not None and new.matched not in self._stop_ids
        plain = len(new.ids) - 1 if ended else len(new.ids)
        for at, i in enumerate(new.ids):
            if self._tags is not None and i in self._tags:
                rest = "".join(text) + self._detokenizer.flush()
                if ids or rest:
                    yield Piece(tuple(ids), rest)
                yield Piece((i,), self._tags.written(i))
                ids, text = [], []
            else:
                ids.append(i)
                text.append(self._detokenizer.add(i) if at < plain else "")
        if ids:
            yield Piece(tuple(ids), "".join(text))
