"""Annotation from structure alone: lists and paragraphs, without any model.

Four ways to cut, two of them after the methods that decode structured answers in parallel:

`points`, as Skeleton-of-Thought (arXiv 2307.15337) expands a skeleton
    Main writes what opens the answer, headings and list markers; each item of a list, and each paragraph,
    is a promise. Main keeps the first paragraph, a paragraph that ends with a colon or begins with a word
    such as "However", code, tables and quotations. The last block closes the answer if it is a paragraph
    that stands behind a list, or begins with words such as "In conclusion": main writes it behind a
    `<sync/>`, which is ours (a skeleton has no conclusion).
`blocks`
    As `points`, and the first paragraph is a promise as well, its topic "introduction". It is often the
    longest block, and everything behind it waits for it otherwise.
`lists`
    The items of lists alone, if at least two thirds of them are long enough: else a model learns to promise
    some and not the others. A sync stands only before a block that begins with words such as "In conclusion".
`details`, as APAR (arXiv 2401.06761) forks
    Main writes the head of each list item (up to its colon or dash, or its first sentence) and the first
    sentence of each paragraph; what follows is a promise. Nothing is joined.

In all, a piece shorter than `least` tokens stays with main (`rough_tokens` counts them), and an answer with
fewer than two promises stays plain: nothing would run in parallel. Lists and paragraphs are those of
CommonMark (with tables), top level only: what stands inside an item goes with it. A topic is made of the
words of a piece's heading, or of the most telling ones in its first sentence.

Structure is no proof of independence: the steps of a calculation stand in a list too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from pasta_async.lang import Chunk, Document, Node, Promise, Sync, Text
from pasta_async.training.faults import INTRODUCTION, SMALL
from pasta_async.training.views import Mark, insert_tags, rough_tokens, with_estimates

Cut = Literal["points", "blocks", "lists", "details"]
LEAST = 20
"""Tokens. A promise costs main about eight and its chunk one, so shorter pieces gain nothing."""

_TEXTS = ("paragraph", "list_item")
_LINE = re.compile(r"\r\n?|\n")
_MARKER = re.compile(r"\s*([-*+]|\d{1,9}[.)])(\s+\[[ xX]\])?\s+")
_PLAIN_HEAD = re.compile(r"\A(\s*)([^\W\d_][^*:.!?\n]{1,48}):(?=\s)")
"""The head of an item, before its colon and not bold."""
_HEAD = re.compile(r"(.{2,80}?)(:\**|\s[-\u2013\u2014]+)\s+", re.DOTALL)
_SENTENCE = re.compile(r".+?[.!?]+[\"'\u2019\u201d)\]*]*\s+(?=[\"'\u2018\u201c(\[*]*[A-Z0-9])", re.DOTALL)
_CLOSING = re.compile(
    r"\W*(in (conclusion|summary|short|the end|closing|essence)|to (conclude|sum up|summari[sz]e)|overall"
    r"|ultimately|all in all|altogether|taken together|therefore|thus|as a result|in total)\b",
    re.IGNORECASE,
)
_CONNECTED = re.compile(
    r"\W*(also|additionally|after|again|and|another|as (a result|for|mentioned|such)|but|by \w+ing"
    r"|consequently|each of|finally|first(ly)?|following|for (example|instance|this)|furthermore|hence|here"
    r"|however|in (addition|contrast|fact|other words|this|these|that)|instead|its?|last(ly)?|likewise"
    r"|meanwhile|moreover|next|now|on the other hand|once|otherwise|remember|second(ly)?|similarly"
    r"|since|so|some of|still|such|that|then|there|these|they|third(ly)?|this|those"
    r"|to (answer|illustrate|provide)|with (this|these|that)|yet|you can also|he|his|she|her)\b",
    re.IGNORECASE,
)
"""Beginnings of a paragraph that continues the one before it: no topic can tell what it is about."""
_LEFT_LIST = re.compile(r"[.!?][ \t]*\r?\n(?=[A-Z])")
"""The end of a sentence before a line at the margin, which CommonMark takes for a part of the list item."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


class _Piece(NamedTuple):
    """A part of a text that could be promised."""

    start: int
    end: int
    heading: str
    """The text that names it; empty if it has none."""


class _Block(NamedTuple):
    """A block at the top level; `start` is behind the marker of an item, `end` before trailing space."""

    kind: str
    """Kind of Markdown: paragraph, list_item, fence, table, ..."""
    start: int
    end: int


def annotate_by_structure(text: str, cut: Cut = "points", least: int = LEAST) -> Document:
    """Annotate a plain answer by its lists and paragraphs; see the module for the rules.

    `.text` of the result is the answer, character for character. A piece of fewer than `least` tokens is not
    promised.
    """
    return with_estimates(insert_tags(text, structure_marks(text, cut, least)), rough_tokens)


def structure_marks(text: str, cut: Cut = "points", least: int = LEAST) -> list[Mark]:
    """The tags of `annotate_by_structure`, of whose promises no two have the same topic."""
    # 1. By the cut: what could be promised, and main's sync, if it has one.
    blocks = _blocks(text)
    if cut == "details":
        candidates = [_detail(text, block) for block in blocks]
        sync = None
    elif cut == "lists":
        candidates = [_point(text, block) for block in blocks if block.kind == "list_item"]
        closing = blocks[-1] if len(blocks) > 1 and blocks[-1].kind == "paragraph" else None
        sync = _sync_before_last(blocks) if closing and _CLOSING.match(text, closing.start) else None
    else:
        of_main, sync = _of_main(blocks, text)
        candidates = [_point(text, block) for number, block in enumerate(blocks) if number not in of_main]
        if cut == "blocks" and blocks and blocks[0].kind == "paragraph":
            candidates.insert(0, _Piece(blocks[0].start, blocks[0].end, INTRODUCTION))
    # 2. Short pieces stay with main; what is left must be worth promising.
    pieces = [piece for piece in candidates if piece and rough_tokens(text[piece.start : piece.end]) >= least]
    if len(pieces) < 2 or (cut == "lists" and 3 * len(pieces) < 2 * len(candidates)):
        return []  # nothing would run in parallel, or only a part of a list
    topics = _topics(text, pieces)
    marks = [
        Mark(start, end, Promise(topic, None, Chunk()))
        for (start, end, _), topic in zip(pieces, topics, strict=True)
    ]
    return [*marks, sync] if sync else marks


def is_item(text: str, start: int) -> bool:
    """True if a list marker stands before a place in a text."""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return bool(_MARKER.fullmatch(line))


def with_bold_heads(document: Document) -> Document:
    """The document in which heads of promised list items are bold, and topics tell which items have one.

    A head begins with a letter, and ends with a colon.

    Siblings do not see each other: where some lists have bold heads and others plain ones, each thread
    decides for itself, and a list gets both. So a head is always bold. If an item has one, its topic, which
    main writes in sight of the topics before it, begins with a capital: `Price` for `**Price**: ...`, but
    `pay early` for `Pay early if you can.`
    """
    nodes: list[Node] = []
    start = 0
    for node in document.nodes:
        end = start + len(node.text)
        if isinstance(node, Promise) and node.chunk and is_item(document.text, start):
            text = _PLAIN_HEAD.sub(r"\1**\2**:", node.text)
            has_head = text.lstrip().startswith("**")
            topic = node.topic[:1].upper() + node.topic[1:] if has_head else node.topic.lower()
            node = replace(node, topic=topic, source="", chunk=replace(node.chunk, nodes=(Text(text),)))
        nodes.append(node)
        start = end
    return Document(tuple(nodes))


def _blocks(text: str) -> list[_Block]:
    """The top-level blocks of a text, the items of its lists one by one."""
    starts = [0, *(line_end.end() for line_end in _LINE.finditer(text)), len(text)]
    root = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(text))
    nodes = [part for node in root for part in (node if node.type.endswith("list") else [node])]
    blocks: list[_Block] = []
    for node in nodes:
        first, behind = node.map or (0, 0)
        start = starts[first]
        end = start + len(text[start : starts[min(behind, len(starts) - 1)]].rstrip())
        tail = end  # start of a paragraph that stands behind a list, though it is a part of the last item
        if node.type == "list_item" and (marker := _MARKER.match(text, start, end)):
            start = marker.end()
            if node is nodes[-1] and (list_end := _LEFT_LIST.search(text, start, end)):
                end = list_end.start() + 1
                tail = list_end.end()
        if start < end:
            blocks.append(_Block(node.type, start, end))
        if end < tail:
            blocks.append(_Block("paragraph", tail, len(text.rstrip())))
    return blocks


def _of_main(blocks: Sequence[_Block], text: str) -> tuple[set[int], Mark | None]:
    """The numbers of the blocks that main writes, and its sync: before a closing block, or none."""
    # Code, tables and headings; and what leads to the next block, or needs the one before it.
    of_main = {
        number
        for number, block in enumerate(blocks)
        if block.kind not in _TEXTS
        or (block.kind == "paragraph" and (text[block.end - 1] == ":" or _CONNECTED.match(text, block.start)))
    }
    # The introduction, and a conclusion, which waits for everything before it.
    if blocks and blocks[0].kind == "paragraph":
        of_main.add(0)
    if len(blocks) > 1 and blocks[-1].kind == "paragraph":
        before, last = blocks[-2:]
        if before.kind == "list_item" or _CLOSING.match(text, last.start):
            return of_main | {len(blocks) - 1}, _sync_before_last(blocks)
    return of_main, None


def _sync_before_last(blocks: Sequence[_Block]) -> Mark:
    """The sync that the last of several blocks stands behind."""
    end = blocks[-2].end
    return Mark(end, end, Sync())


def _point(text: str, block: _Block) -> _Piece:
    """A whole block, and what stands before its colon or dash."""
    head = _HEAD.match(text, block.start, block.end)
    return _Piece(block.start, block.end, head[1] if head else "")


def _detail(text: str, block: _Block) -> _Piece | None:
    """The text behind the head of an item, or behind the first sentence of a paragraph."""
    if block.kind not in _TEXTS:
        return None
    head = _HEAD.match(text, block.start, block.end) if block.kind == "list_item" else None
    head = head or _SENTENCE.match(text, block.start, block.end)
    return _Piece(head.end(), block.end, head[0]) if head and head.end() < block.end else None


def _topics(text: str, pieces: Sequence[_Piece]) -> list[str]:
    """A topic of at most three words for each piece, all different: main tells pieces apart by these alone.

    They are the first telling words of its heading, or else those that `_telling_of_prose` finds.
    """
    counts = [Counter(map(str.lower, _words(text[piece.start : piece.end]))) for piece in pieces]
    totals = sum(counts, Counter[str]())
    topics: list[str] = []
    for piece, count in zip(pieces, counts, strict=True):
        if piece.heading:
            chosen = _telling(_words(piece.heading))[:3]
        else:
            sentence = _SENTENCE.match(text, piece.start, piece.end)
            first = sentence[0] if sentence else text[piece.start : piece.end]
            chosen = _telling_of_prose(first, count, totals)
        topic = " ".join(chosen) or "this part"
        if topic.lower() in map(str.lower, topics):
            # The third word becomes one that this piece alone has, or else a number.
            new = (word for word in count if count[word] == totals[word] and word not in SMALL)
            topic = " ".join([*topic.split()[:2], next(new, str(len(topics) + 1))])
        topics.append(topic)
    return topics


def _telling_of_prose(sentence: str, count: Counter[str], totals: Counter[str]) -> list[str]:
    """Three words of a piece's first sentence: the first telling one, and the two that tell it from others.

    Those are the ones that the piece has most often and the others seldom; among equals the longer ones.
    `count` has the piece's words, `totals` those of all pieces, in small letters.
    """
    words = _telling(_words(sentence))
    weights = {word: (count[word.lower()] ** 2 / totals[word.lower()], len(word)) for word in words[1:]}
    best = {*words[:1], *sorted(weights, key=weights.__getitem__, reverse=True)[:2]}
    return [word for word in dict.fromkeys(words) if word in best]


def _words(text: str) -> list[str]:
    """The words of a text's beginning, long ones cut."""
    return [word[:30] for word in _WORD.findall(text[:400])]


def _telling(words: Sequence[str]) -> Sequence[str]:
    """The words that say something, or all if none does."""
    return [word for word in words if word.lower() not in SMALL] or words
