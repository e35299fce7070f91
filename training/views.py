"""A document's views as tokens, and as one trie that the trainer packs; lengths in tokens.

A model that was trained on plain text finds the way to a tag only if the text around it stays as it knows it.
So a document's text is encoded once, as a whole, and tags stand between its natural tokens: removing them
leaves exactly the ids of the plain answer.

Views share their contexts, so a trie holds each context once. A token attends to its ancestors and itself,
and its position is its depth: logits are exactly those of each view alone.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.lang import (
    TAG_TOKENS,
    Document,
    Ignored,
    Node,
    Promise,
    Segment,
    Text,
    rounded_estimate,
    views,
)
from pasta_async.model_folder import TokenizerFiles
from pasta_async.protocol import Message
from pasta_async.tag_tokens import TagIds
from pasta_async.tokenizer import Tokenizer

CountTokens = Callable[[str], int]
"""Tokens of a text, without special ones."""

_PIECE = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]+|_+|\n\s*", re.UNICODE)
_LETTERS = 8


class Codec(Tokenizer):
    """The tokenizer of a model folder that has the tags, as documents are encoded for it.

    Raises:
        UnsupportedModelError: The tokenizer cannot be used, or lacks the tags.
        InvalidRequestError: The chat template does not fit; the message says why.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(TokenizerFiles.read(folder))
        if self.tags is None:
            raise UnsupportedModelError(f"the tokenizer of {folder} lacks the tags of PASTA-LANG")
        self.tag_ids: TagIds = self.tags
        self.end: int = self._end_of_answer(folder)
        """Id that ends an answer: the first special one that the template puts behind an assistant's text."""

    def _end_of_answer(self, folder: Path) -> int:
        text = "qwxz"
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]
        ids = self.encode_chat(chat, {"add_generation_prompt": False})
        starts = [start for start in range(len(ids)) if text in self.decode(ids[start:])]
        if not starts:
            raise InvalidRequestError(
                f"{folder}: the chat template leaves out what an assistant said; name another one"
            )
        for token in ids[starts[-1] + 1 :]:
            if token in self.commands:
                return token
        raise InvalidRequestError(
            f"{folder}: the chat template puts no special token behind an answer, so answers would "
            "have no end; name another template with --chat-template"
        )

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.encode(text))

    def prompt(self, messages: Sequence[Message], pasta: bool = True) -> list[int]:
        """Ids of a chat up to where the answer begins; without `pasta` it asks for the plain baseline.

        Raises:
            InvalidRequestError: The chat template refuses the messages.
        """
        return self.encode_chat(messages, {} if pasta else {"pasta": False})


class Mark(NamedTuple):
    """A tag for a text. A promise gets the characters from `start` to before `end` as its chunk."""

    start: int
    end: int
    tag: Node


def insert_tags(text: str, marks: Iterable[Mark]) -> Document:
    """The text as a document with these tags; they stand in order and do not overlap."""
    nodes: list[Node] = []
    done = 0
    for start, end, tag in marks:
        nodes.append(Text(text[done:start]))
        if isinstance(tag, Promise) and tag.chunk:
            inside = (Text(text[start:end]),) if start < end else ()
            tag = replace(tag, chunk=replace(tag.chunk, nodes=inside))
        nodes.append(tag)
        done = end
    return Document(tuple(node for node in (*nodes, Text(text[done:])) if node != Text("")))


def marks_of(document: Document) -> Iterator[Mark]:
    """The tags of a document, which `insert_tags` puts into its text again."""
    start = 0
    for node in document.nodes:
        end = start + len(node.text)
        if not isinstance(node, Text):
            yield Mark(start, end, node)
        start = end


def with_blank_lines(document: Document) -> Document:
    """The document in which each chunk that ends a line ends with an empty line.

    It stands in place of main's line breaks behind the chunk. A thread knows neither if its item is the last
    nor if the items of its list stand close together, so only one end is right for all.
    """
    nodes: list[Node] = []
    end = 0
    moved = False  # main's text does not begin with line breaks any more
    for node in document.nodes:
        end += len(node.text)
        if isinstance(node, Promise) and node.chunk and document.text[end : end + 1] in ("", "\n", "\r"):
            node = replace(node, chunk=replace(node.chunk, nodes=(Text(node.text.rstrip() + "\n\n"),)))
            moved = True
        elif isinstance(node, Text) and moved:
            node = Text(node.text.lstrip("\r\n"))
            moved = False
        nodes.append(node)
    return Document(tuple(node for node in nodes if node != Text("")))


class EncodedView(NamedTuple):
    """A `View` as ids."""

    thread: int
    context: list[int]
    target: list[int]
    """Ids that the thread generates; main's last target ends with end-of-text."""


def encode_views(codec: Codec, document: Document) -> list[EncodedView]:
    """The views of a document, its text encoded as a whole, with each tag between two tokens of it.

    A tag that falls into a token moves: what opens (a promise with its `<async>`, a `<sync/>`) to the token's
    front, `</async>` behind it, and nothing ever before the tag that it stood behind. So the space in front
    of a chunk may become a part of it, and so may the blank line behind (Llama 3 has it in one token with the
    full stop). Topics, estimates and what is malformed are encoded alone.
    """
    ids = codec.encode(document.text)
    cuts = _cuts(codec, document.text, ids)
    encode_alone = lru_cache(maxsize=None)(codec.encode)

    def encoded(parts: Iterable[Segment]) -> Iterator[int]:
        for part in parts:
            end = part.start + len(part.text)
            if part.is_tag:
                yield codec.tag_ids[TAG_TOKENS.index(part.text)]
            elif part.start in cuts and end in cuts:
                yield from ids[cuts[part.start] : cuts[end]]
            else:
                yield from encode_alone(part.text)

    encoded_views: list[EncodedView] = []
    for view in views(_move_tags(document, [*cuts])):
        target = [*encoded(view.target)]
        if view.ends_answer:
            target.append(codec.end)
        encoded_views.append(EncodedView(view.thread, [*encoded(view.context)], target))
    return encoded_views


def token_spans(
    tokenizer: Tokenizer, text: str, marks: Iterable[Mark]
) -> tuple[list[int], list[tuple[int, int]]] | None:
    """The ids of a text, and the first index and the end of each promise's chunk in them.

    Tags move as in `encode_views`. None if the ids do not decode to the text, which a vocabulary may not be
    able to write.
    """
    ids = tokenizer.encode(text)
    cuts = _cuts(tokenizer, text, ids)
    if not cuts:
        return None
    moved = marks_of(_move_tags(insert_tags(text, marks), [*cuts]))
    return ids, [(cuts[mark.start], cuts[mark.end]) for mark in moved]


def _cuts(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> dict[int, int]:
    """The places where a token and a character of a text end together: tokens before, by characters before.

    Empty if the ids do not decode to the text, which a vocabulary may not be able to write.
    """
    tokens = [tokenizer.token_bytes(token) for token in ids]
    if b"".join(tokens) != text.encode("utf-8"):
        return {}
    sizes = (len(character.encode("utf-8")) for character in text)
    characters_before = {size: count for count, size in enumerate(accumulate(sizes, initial=0))}  # by bytes
    ends = enumerate(accumulate(map(len, tokens), initial=0))
    return {characters_before[end]: number for number, end in ends if end in characters_before}


def _move_tags(document: Document, edges: Sequence[int]) -> Document:
    """The document, its tags moved to `edges`; without any, or with an ignored tag in a chunk, as it is."""
    inside = [node for promise in document.promises if promise.chunk for node in promise.chunk.nodes]
    if not edges or any(isinstance(node, Ignored) for node in inside):
        return document
    marks: list[Mark] = []
    done = 0
    for start, end, tag in marks_of(document):
        # A tag begins at the edge before it and ends at the edge behind it, never before the previous tag.
        start = max(done, edges[bisect_right(edges, start) - 1])
        done = max(start, edges[bisect_left(edges, end)]) if tag.text else start
        marks.append(Mark(start, done, tag))
    return insert_tags(document.text, marks)


# --- tries


@dataclass(slots=True)
class Trie:
    """Tokens as a tree, each behind its parent: views that begin alike share their beginning."""

    ids: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    """The index of each token's parent; -1 for the first one."""
    targets: list[int] = field(default_factory=list[int])
    """Indexes of the tokens that a thread generates."""
    _children: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, node: int, ids: Sequence[int], target: bool = False) -> int:
        """Walk from a node (-1 is the root) along ids, adding what is missing; returns the last node."""
        for token in ids:
            child = self._children.setdefault((node, token), len(self.ids))
            if child == len(self.ids):
                self.ids.append(token)
                self.parents.append(node)
            if target:
                self.targets.append(child)
            node = child
        return node

    def depths(self) -> list[int]:
        """The position of each token in every view that holds it."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    def preorder(self) -> tuple[list[int], list[int]]:
        """The place of each token in preorder, and where its subtree ends there: [tokens] each.

        A token's subtree follows it without a gap; siblings keep their order.
        """
        sizes = [1 for _ in self.ids]
        for index in reversed(range(len(self))):  # children stand behind their parents
            if self.parents[index] >= 0:
                sizes[self.parents[index]] += sizes[index]
        places: list[int] = []
        free = [0 for _ in self.ids]  # the next place below each token
        free_root = 0
        for parent, size in zip(self.parents, sizes, strict=True):
            place = free[parent] if parent >= 0 else free_root
            if parent >= 0:
                free[parent] += size
            else:
                free_root += size
            free[len(places)] = place + 1
            places.append(place)
        return places, [place + size for place, size in zip(places, sizes, strict=True)]


def pack_views(codec: Codec, prompt: Sequence[int], document: Document) -> Trie:
    """Every view of a document behind a prompt, with end-of-text as a target of main's last view."""
    trie = Trie()
    root = trie.extend(-1, prompt)
    for view in encode_views(codec, document):
        trie.extend(trie.extend(root, view.context), view.target, target=True)
    return trie


def pack_plain(codec: Codec, prompt: Sequence[int], document: Document) -> Trie:
    """The baseline: the text without tags, one segment, and end-of-text."""
    trie = Trie()
    trie.extend(trie.extend(-1, prompt), [*codec.encode(document.text), codec.end], target=True)
    return trie


# --- lengths


def rough_tokens(text: str) -> int:
    """A rough count of tokens, without a tokenizer: as of English text in a vocabulary of some 100,000.

    A word is one token for every 8 letters begun, three digits are one, so is a run of punctuation or of line
    breaks. Ratios of lengths, such as a speed-up, hardly depend on the tokenizer.
    """
    return sum(
        math.ceil(len(piece) / _LETTERS) if piece[0].isalpha() else 1 for piece in _PIECE.findall(text)
    )


def with_estimates(document: Document, count: CountTokens | None) -> Document:
    """The document with its tags in their exact form, each estimate made from the length of its chunk.

    Each is at least ten. Without `count` promises have none.
    """
    nodes: list[Node] = []
    for node in document.nodes:
        if isinstance(node, Promise) and node.chunk is not None:
            tokens = rounded_estimate(max(1, count(node.chunk.text))) if count else None
            node = replace(node, tokens=tokens, source="")
        nodes.append(node)
    return Document(tuple(nodes))


def critical_path(document: Document, count: CountTokens) -> int:
    """Tokens on the longest chain that has to be decoded one after another, by `views(document)`.

    A chunk's thread starts when main has written its promise; a round is over when main is at its sync and
    every chunk is there. Tags are counted (each tag token is one), forced tokens and end-of-text are not.
    """
    measure = lru_cache(maxsize=None)(count)

    def length(parts: Iterable[Segment]) -> int:
        return sum(1 if part.is_tag else measure(part.text) for part in parts)

    path = 0  # of the rounds that are over
    round_length = 0  # of the longest chain in this round
    joined = 0  # tokens of main's context at the beginning of this round
    for view in views(document):
        if view.thread == 0:  # the round before this stretch of main is over
            path += round_length
            joined = length(view.context)
            round_length = length(view.target)
        else:
            started = length(view.context) - joined - 1  # less the `<async>` that is forced
            round_length = max(round_length, started + length(view.target))
    return path + round_length


def text_speedup(document: Document) -> float:
    """Tokens of the text without tags / critical path, by `rough_tokens`: 1 for a plain answer.

    For an annotation this is the theoretical speed-up, since its baseline is the answer that was annotated.
    """
    path = critical_path(document, rough_tokens)
    return rough_tokens(document.text) / path if path else 1.0
