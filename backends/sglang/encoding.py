"""Text to ids through a tokenizer that reads special tokens everywhere, without letting it.

SGLang's `/tokenize` turns a special token that somebody typed into its id. Here a marker character is put
inside every such string, the text is encoded, and the ids of the marker are taken out again: what remains
are the ids of the typed characters.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pasta_async.errors import BackendProtocolError, BackendStatusError, InvalidRequestError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import TagIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pasta_async.protocol import Message

__all__ = ["Encoder", "Tokenizer"]

MARKERS = "\ue000\uf8ff\u2063\u241f\u00a6\u00a7|~^"
"""Characters tried as marker: rare ones first, since a tokenizer without bytes may know none of those."""

ROUNDS = 8
"""Times new special tokens may show up behind those that were cut: they overlap."""


class Tokenizer(Protocol):
    """A tokenizer somewhere else."""

    async def tokenize(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Ids of texts; `special` adds what the tokenizer puts around a text (BOS)."""
        ...

    async def tokenize_chat(
        self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Ids of messages by the chat template, with the prompt for the answer."""
        ...

    async def detokenize(self, ids: Sequence[Sequence[int]], *, skip_special: bool = False) -> list[str]:
        """Texts of lists of ids."""
        ...


class Encoder:
    """Encodes what users typed as data, and finds the tag ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = _Seamless(tokenizer)
        self._tags: TagIds | None = None
        self._literals: dict[int, str] = {}
        """Special tokens met so far, with their written forms."""

    async def find_tags(self) -> TagIds | None:
        """Ids of the tag tokens, if all six are single tokens of the model. To be called first."""
        await self._tokenizer.settle()
        ids = await self._tokenizer.tokenize(TAG_TOKENS)
        if any(len(tag) != 1 for tag in ids) or len({tag[0] for tag in ids}) != len(TAG_TOKENS):
            return None
        if tuple(await self._tokenizer.detokenize(ids)) != TAG_TOKENS:
            return None
        self._tags = TagIds(*(tag[0] for tag in ids))
        self._literals.update(zip(self._tags, TAG_TOKENS, strict=True))
        return self._tags

    async def encode(self, text: str) -> list[int]:
        """Ids of `text` as data.

        Raises:
            BackendProtocolError: The tokenizer cannot express the text without its special tokens.
        """
        if not text:
            return []
        for marker in _markers([text]):
            ids, marked = await self._guard([text], marker)
            if marked and (found := await self._unmarked(ids[0], marked)) is not None:
                return found
        raise _cannot(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Ids of messages by the chat template; what stands in them is data.

        Raises:
            InvalidRequestError: No message, or more than one user message for a model without a template.
            BackendStatusError: The template refused the messages.
        """
        if not messages:
            raise InvalidRequestError("no message to encode")
        contents = [message.get("content", "") for message in messages]
        for marker in _markers(contents):
            _, marked = await self._guard(contents, marker)
            if marked is None:
                continue
            guarded = [{**m, "content": text} for m, text in zip(messages, marked.texts, strict=True)]
            found = await self._unmarked(await self._render(guarded, template_kwargs), marked)
            if found is not None:
                return found
        raise _cannot(contents)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        [text] = await self._tokenizer.detokenize([ids])
        return text

    async def _render(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        try:
            return await self._tokenizer.tokenize_chat(messages, template_kwargs)
        except BackendStatusError as error:
            if "chat_template is not set" not in str(error):
                raise
            if len(messages) > 1 or messages[0].get("role") != "user":
                raise InvalidRequestError(
                    "the model has no chat template: it takes one message of the role user and nothing else"
                ) from error
        [around] = await self._tokenizer.tokenize([""], special=True)
        return [*around[:1], *await self.encode(messages[0].get("content", ""))]

    async def _guard(self, texts: Sequence[str], marker: str) -> tuple[list[list[int]], _Marked | None]:
        """Texts with markers in every special token they spell, and their ids; None if that does not help."""
        marked = _Marked(marker, list(texts), 0)
        for _ in range(ROUNDS):
            ids = await self._tokenizer.tokenize(marked.texts)
            if await self._is_data(ids, marked.texts):
                return ids, marked
            await self._learn(i for one in ids for i in one)
            marked = self._mark(texts, marker)
        return [], None

    async def _is_data(self, ids: list[list[int]], texts: Sequence[str]) -> bool:
        """Whether no id is a tag or special."""
        if self._tags and not set(self._tags).isdisjoint(i for one in ids for i in one):
            return False
        bare = await self._tokenizer.detokenize(ids, skip_special=True)
        # The texts differ without a special token where a tokenizer normalizes them.
        return bare == list(texts) or bare == await self._tokenizer.detokenize(ids)

    async def _learn(self, ids: Iterable[int]) -> None:
        unknown = [[i] for i in sorted(set(ids) - self._literals.keys())]
        full = await self._tokenizer.detokenize(unknown)
        bare = await self._tokenizer.detokenize(unknown, skip_special=True)
        self._literals.update(
            {one[0]: text for one, text, rest in zip(unknown, full, bare, strict=True) if text and not rest}
        )

    def _mark(self, texts: Sequence[str], marker: str) -> _Marked:
        """Texts with the marker inside every special token they spell."""
        result = _Marked(marker, [], 0)
        for text in texts:
            cuts = {at + 1 for literal in self._literals.values() for at in _occurrences(text, literal)}
            edges = [0, *sorted(cuts), len(text)]
            result.texts.append(marker.join(text[a:b] for a, b in pairwise(edges)))
            result = result._replace(cuts=result.cuts + len(cuts))
        return result

    async def _unmarked(self, ids: list[int], marked: _Marked) -> list[int] | None:
        """`ids` without those of the markers, or None where these cannot be told from the rest."""
        if not marked.cuts:
            return ids
        alone, behind = await self._tokenizer.tokenize(["x", "x" + marked.marker])
        mark = behind[len(alone) :]
        if not mark or behind[: len(alone)] != alone:
            return None
        found, count = _without(ids, mark)
        with_marks, without = await self._tokenizer.detokenize([ids, found])
        return found if count == marked.cuts and without == with_marks.replace(marked.marker, "") else None


class _Seamless:
    """A tokenizer that adds nothing at the beginning of a text.

    Those of the SentencePiece kind put a space before every text and drop it from every decoded one. For
    these a line break stands before each text, and what belongs to it is cut off again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self.tokenize_chat = tokenizer.tokenize_chat

    async def settle(self) -> None:
        """Find out which kind this is."""
        [x] = await self._tokenizer.tokenize(["x"])
        if await self._tokenizer.detokenize([x + x]) != ["xx"]:
            [self._before] = await self._tokenizer.tokenize(["\n"])

    async def tokenize(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        before = self._before
        if not before or special:
            return await self._tokenizer.tokenize(texts, special=special)
        found = await self._tokenizer.tokenize(["\n" + text for text in texts])
        if all(ids[: len(before)] == before for ids in found):
            return [ids[len(before) :] for ids in found]
        return await self._tokenizer.tokenize(texts)

    async def detokenize(self, ids: Sequence[Sequence[int]], *, skip_special: bool = False) -> list[str]:
        before = self._before
        if not before:
            return await self._tokenizer.detokenize(ids, skip_special=skip_special)
        texts = await self._tokenizer.detokenize([[*before, *one] for one in ids], skip_special=skip_special)
        return [text.removeprefix("\n") for text in texts]


class _Marked(NamedTuple):
    marker: str
    texts: list[str]
    cuts: int


def _cannot(what: object) -> BackendProtocolError:
    return BackendProtocolError(f"the tokenizer cannot express {what!r:.200} without its special tokens")


def _markers(texts: Sequence[str]) -> Iterator[str]:
    return (marker for marker in MARKERS if not any(marker in text for text in texts))


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _without(ids: list[int], part: list[int]) -> tuple[list[int], int]:
    """`ids` without each `part`, and how many there were."""
    kept: list[int] = []
    at = count = 0
    while at < len(ids):
        if ids[at : at + len(part)] == part:
            count, at = count + 1, at + len(part)
        else:
            kept.append(ids[at])
            at += 1
    return kept, count
