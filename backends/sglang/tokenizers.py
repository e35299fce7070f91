"""Text to ids and ids to text, by a server's tokenizer.

SGLang's `/tokenize` turns a special token that somebody typed into its id. `RemoteTokenizer` puts a marker
inside every such string (`pasta_async.backends.guard`), has the text encoded, and takes the marker's ids out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pasta_async.backends.guard import (
    apart,
    as_written,
    beginnings,
    check_fits,
    check_messages,
    lone_text,
    mark,
    replace_texts,
    spells_command,
    texts_in,
    with_arguments_read,
)
from pasta_async.backends.sglang.replies import Id, Listed, Reply
from pasta_async.backends.sglang.transport import Server
from pasta_async.errors import BackendStatusError, InvalidRequestError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import Message
from pasta_async.tag_tokens import TagIds

MARKERS = "\ue000\uf8ff\u2063\u241f\u00a6\u00a7|~^"
"""Characters tried as marker: rare ones first, since a tokenizer without bytes may know none of those."""

_NO_DATA = "the model's tokenizer cannot express the text without its special tokens"

ROUNDS = 8
"""Times new special tokens may show up behind those that were cut: they overlap."""


class _Ids(Reply):
    tokens: Listed[Id]


class _IdsOfTexts(Reply):
    tokens: Listed[Listed[Id]]


class _Texts(Reply):
    text: Listed[str]


class RemoteTokenizer:
    """A server's `/tokenize` and `/detokenize`, which know its tokenizer and its chat template.

    Args:
        server: Where they are.
        context_length: Tokens that the model takes; what is far longer is refused before all of it is sent.
    """

    def __init__(self, server: Server, context_length: int) -> None:
        self._server, self._limit = server, context_length
        self.tags: TagIds | None = None
        self._before: list[int] = []
        self._specials: dict[int, str] = {}  # special tokens met so far, with their written forms
        self._lone: dict[int, str] = {}

    async def learn(self) -> None:
        """Find out what kind of tokenizer this is, and the tag ids. To be called first.

        Tokenizers of the SentencePiece kind put a space before every text and drop it from every decoded one.
        For these a line break stands before each text, and what belongs to it is cut off again.
        """
        [x] = await self.tokenize(["x"])
        if await self.detokenize_all([x + x]) != ["xx"]:
            [self._before] = await self.tokenize(["\n"])
        ids = await self.tokenize(TAG_TOKENS)
        if all(len(tag) == 1 for tag in ids) and tuple(await self.detokenize_all(ids)) == TAG_TOKENS:
            self.tags = TagIds(*(tag[0] for tag in ids))
            self._specials.update(zip(self.tags, TAG_TOKENS, strict=True))

    async def encode(self, text: str) -> list[int]:
        """Ids of text as data.

        Raises:
            InvalidRequestError: It is no valid Unicode, or the tokenizer cannot express it without special
                tokens.
            PromptTooLongError: It has far more tokens than the model takes.
        """
        await self._check_length(texts_in(text))
        if not text:
            return []
        for marker in _markers([text]):
            if guarded := await self._guard([text], marker, edges=False):
                [ids], [marked] = guarded
                found = ids if marked == text else await self._without_marker(ids, marker)
                if found is not None:
                    return found
        raise InvalidRequestError(_NO_DATA)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Ids of messages by the chat template; what stands in them, in any field, is data.

        Raises:
            InvalidRequestError: A message is malformed or cannot be expressed as data, or the model has no
                chat template and they are more than one user message.
            PromptTooLongError: They have far more tokens than the model takes.
            BackendStatusError: The template refused the messages.
        """
        check_messages(messages)
        messages = [with_arguments_read(message) for message in messages]  # as SGLang reads them
        texts = texts_in(messages, template_kwargs)
        await self._check_length(texts)
        for marker in _markers(texts):
            if guarded := await self._guard(texts, marker, edges=True):
                marked = dict(zip(texts, guarded[1], strict=True))
                said, kwargs = replace_texts([messages, dict(template_kwargs)], marked.__getitem__)
                said = [apart(message, marker) for message in said]
                ids = await self.tokenize_chat(said, kwargs)
                if ids is None:  # the model has no chat template
                    text = lone_text(messages)
                    [around] = await self._tokenize([""], special=True)
                    return [*around[:1], *await self.encode(text)]
                plain = said == messages and guarded[1] == texts
                found = ids if plain else await self._without_marker(ids, marker)
                if found is not None:
                    return found
        raise InvalidRequestError(_NO_DATA)

    async def check_data(self, texts: Sequence[str]) -> None:
        """Refuse what would not be data where the server encodes it as it is.

        Raises:
            InvalidRequestError: A text spells a special token or a tag.
            PromptTooLongError: It has far more tokens than the model takes.
        """
        await self._check_length(texts)
        written = as_written(texts)
        ids = await self.tokenize(written)
        for text, one, is_data in zip(written, ids, await self._are_data(ids, written), strict=True):
            if not is_data:
                await self._learn_specials(set(one))
                found = [self._specials[i] for i in one if i in self._specials]
                raise spells_command(text, found[0] if found else text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        [text] = await self.detokenize_all([ids])
        return text

    # What the server does ---------------------------------------------------------------------------------

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts as the server reads them, special tokens too."""
        before = self._before
        found = await self._tokenize(["\n" + text for text in texts] if before else texts)
        if all(ids[: len(before)] == before for ids in found):
            return [ids[len(before) :] for ids in found]
        return await self._tokenize(texts)

    async def _tokenize(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """The same with nothing before a text, or, if `special`, with the tokens that belong around one."""
        body = {"prompt": list(texts), "add_special_tokens": special}
        found = (await self._server.ask(_IdsOfTexts, "/tokenize", body)).tokens if texts else []
        self._server.check_count("/tokenize", found, texts)
        return found

    async def tokenize_chat(
        self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]
    ) -> list[int] | None:
        """Ids of messages by the server's chat template; None if it has none."""
        kwargs = dict(template_kwargs) or None
        body = {"messages": list(messages), "add_generation_prompt": True, "chat_template_kwargs": kwargs}
        try:
            return (await self._server.ask(_Ids, "/tokenize", body)).tokens
        except BackendStatusError as error:
            if "chat_template is not set" in str(error):
                return None
            raise

    async def detokenize_all(self, ids: Iterable[Sequence[int]], *, skip_special: bool = False) -> list[str]:
        """Texts of lists of ids."""
        lists = [[*self._before, *one] for one in ids]
        filled = [one for one in lists if one]  # an empty first list is read as no list at all
        body = {"tokens": filled, "skip_special_tokens": skip_special}
        found = (await self._server.ask(_Texts, "/detokenize", body)).text if filled else []
        self._server.check_count("/detokenize", found, filled)
        texts = iter(found)
        return [next(texts).removeprefix("\n" if self._before else "") if one else "" for one in lists]

    async def detokenize_for_reader(self, ids: list[list[int]]) -> list[str]:
        """Texts of lists of ids; that of a lone id, end-of-text in general, is asked for once."""
        if [*map(len, ids)] != [1]:
            return await self.detokenize_all(ids)
        [[lone]] = ids
        if lone not in self._lone:
            [self._lone[lone]] = await self.detokenize_all(ids)
        return [self._lone[lone]]

    # What is data -----------------------------------------------------------------------------------------

    async def _check_length(self, texts: Iterable[str]) -> None:
        for beginning in beginnings(texts, self._limit):
            [ids] = await self.tokenize([beginning])
            check_fits(ids, self._limit)

    async def _guard(
        self, texts: list[str], marker: str, *, edges: bool
    ) -> tuple[list[list[int]], list[str]] | None:
        """Ids of texts with the marker inside every special token they spell, and these texts."""
        for _ in range(ROUNDS):
            marked = [mark(text, self._specials.values(), marker, edges=edges) for text in texts]
            ids = await self.tokenize(marked)
            if all(await self._are_data(ids, marked)):
                return ids, marked
            await self._learn_specials({i for one in ids for i in one})
        return None

    async def _are_data(self, ids: list[list[int]], texts: list[str]) -> list[bool]:
        """For each text whether none of its ids is a tag or special."""
        bare = await self.detokenize_all(ids, skip_special=True)
        # The texts differ without a special token where a tokenizer normalizes them.
        full = texts if bare == texts else await self.detokenize_all(ids)
        tags = frozenset(self.tags or ())
        return [
            tags.isdisjoint(one) and plain in (text, whole)
            for one, plain, text, whole in zip(ids, bare, texts, full, strict=True)
        ]

    async def _learn_specials(self, ids: set[int]) -> None:
        unknown = [[i] for i in sorted(ids - self._specials.keys())]
        full = await self.detokenize_all(unknown)
        bare = await self.detokenize_all(unknown, skip_special=True)
        texts = zip(unknown, full, bare, strict=True)
        self._specials.update({one[0]: text for one, text, rest in texts if text and not rest})

    async def _without_marker(self, ids: list[int], marker: str) -> list[int] | None:
        """`ids` without those of the marker, or None where these cannot be told from the rest."""
        alone, behind = await self.tokenize(["x", "x" + marker])
        own = behind[len(alone) :]
        if not own or behind[: len(alone)] != alone:
            return None
        found = list(_without(ids, own))
        probe, with_marker, without = await self.detokenize_all([behind, ids, found])
        exact = probe == "x" + marker and without == with_marker.replace(marker, "")
        return found if exact else None


def _markers(texts: Sequence[str]) -> Iterator[str]:
    return (marker for marker in MARKERS if not any(marker in text for text in texts))


def _without(ids: list[int], part: list[int]) -> Iterator[int]:
    """`ids` without each `part`."""
    at = 0
    while at < len(ids):
        if ids[at : at + len(part)] == part:
            at += len(part)
        else:
            yield ids[at]
            at += 1
