"""Faults of an answer that a program can count.

They need no model and no reference, the prompt at most, and say nothing about whether an answer is true or
good. Their lists of words are English.

- malformed: it did not end by itself, or its tags are wrong
- loop: the text repeats itself (`repeats_itself`)
- runaway: more than 20 promises or items of one list; or more than 10 in a malformed answer
- miscount: the prompt asks for a number of things (`asked_count`), and the answer's longest list, or in an
  answer without lists the number of promises, is another
- formless: the prompt's record names a form (a title, bullet points, JSON), and the text lacks it
- unfinished: it ends with a colon, and what it announces is missing
- same_topic: a promise whose topic has the same words as an earlier one's
- empty: a promise without a chunk, or whose chunk has neither a letter nor a digit
- cut: a chunk that its budget ended, where that is known; or that ends within a sentence: with a comma or a
  word such as "the", or without a full stop in a line that has one before
- repeat: a chunk of which at least half the stretches of three words stand before it, in main or in a sibling
- off_topic: a chunk in which, and in the line before which, no word begins like one of its topic's (an
  introduction is none)
- unspaced: a chunk that begins or ends without the space between it and its neighbour's text ("1.Tea")
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from pasta_async.lang import Document, Promise

SMALL: frozenset[str] = frozenset(
    (
        "a an the this that these those is are was were be been it its they their there here you your i "
        "we our he she his her in on at of for to from by with as and or but if when while one can could "
        "will would may should have has had do does also another additionally finally first firstly "
        "second secondly third next then lastly "
    ).split()
)
"""Words that do not tell what a text is about."""

INTRODUCTION = "introduction"
"""The topic of an answer's opening: it names a place, not what the text is about."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_STEM = 4

_LOOP_RUN = 8
_LOOP_LINE = 3
_LOOP_SHARE = 0.2
_REPEAT_RUN = 3
_REPEAT_SHARE = 0.5
_RUNAWAY = 20
_RUNAWAY_CUT = 10

_NUMBERS = {
    word: number
    for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), 2)
}
_ASKED = re.compile(
    r"\b(?:create|describe|explain|find|generate|give|identify|list|name|offer|propose|provide|recommend|share|suggest|"
    r"tell|write|think of|come up with|what (?:are|were))"
    r"(?:\s+(?:a list of|about|best|for me|me|most|my|of|out|some|the|top|up|us|with|your)){0,4}"
    rf"\s+(?P<number>{'|'.join(_NUMBERS)}|[2-9]|1\d|20)\s+"
    r"(?!(?:acts|characters|days|dollars|hours|lines|minutes|months|pages|paragraphs|parts|people|persons|sentences|"
    r"stanzas|syllables|times|verses|weeks|words|years)\b)"
    r"(?:(?!or\b|to\b)[\w'-]+\s+){0,3}?[\w'-]*[a-z]s\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])\s")
_SENTENCE_END = re.compile(r"[^\W\d_]{2}[.!?][\"'\u2019\u201d)\]*]*\s")
_OPEN_END = re.compile(r"(?:[^\W\d_]|,)\Z")
_UNSPACED = re.compile(r"[\w.,:;!?)][\w*]")
_NO_TOPIC = SMALL | {INTRODUCTION}
_NO_END = frozenset("a an the of to from with and or but as is are was were your its their our".split())


def words(text: str) -> list[str]:
    """The words in small letters. A number is none, so the items of a list do not differ by theirs."""
    return _WORD.findall(text.lower())


def runs(items: Sequence[str], length: int) -> list[tuple[str, ...]]:
    """Every stretch of `length` words, in order."""
    return [tuple(items[start : start + length]) for start in range(len(items) - length + 1)]


def same_stem(word: str, other: str) -> bool:
    """True if two words begin alike: four letters, and all but two of the shorter one's ("taste", "tasty").

    Words of up to three letters may differ by an ending of two.
    """
    shorter, longer = sorted((word, other), key=len)
    same = max(_STEM, len(shorter) - 2)
    if len(shorter) < _STEM:
        return longer.startswith(shorter) and len(longer) - len(shorter) <= 2
    return shorter[:same] == longer[:same]


class Faults(NamedTuple):
    """The faults of one answer."""

    promises: int
    """All promises of the answer."""
    counts: Counter[str]
    """By the name of a fault: 1 if the answer as a whole has it, or the number of promises that have it."""


OF_ANSWERS: dict[str, float] = {
    "malformed": 0.5,
    "loop": 0.5,
    "runaway": 0.5,
    "miscount": 0.25,
    "formless": 0.25,
    "unfinished": 0.5,
}
"""The faults that an answer has as a whole, and what each takes off its soundness."""
OF_PROMISES: dict[str, float] = {
    "same_topic": 0.25,
    "empty": 0.5,
    "cut": 0.5,
    "repeat": 0.5,
    "off_topic": 0.25,
    "unspaced": 0.25,
}
"""The faults that each of its promises may have, and what they take off if all have it."""


def asked_count(prompt: str) -> int | None:
    """The number of things that a prompt asks for, as in "Give five tips"; None without one."""
    if (request := _ASKED.search(prompt)) is None:
        return None
    number: str = request["number"].lower()
    return _NUMBERS.get(number) or int(number)


def lacks_form(form: str, answer: str) -> bool:
    """True if a prompt asks for a form, a regular expression, and an answer does not have it."""
    return bool(form) and not re.compile(form, re.DOTALL | re.MULTILINE).match(answer.strip())


def count_faults(
    document: Document,
    prompt: str = "",
    *,
    form: str = "",
    well_formed: bool = True,
    cut: Collection[int] = (),
) -> Faults:
    """Count the faults of an answer, plain or not.

    Args:
        document: The answer.
        prompt: The text that asked for it, in which a number of things may be named.
        form: See `lacks_form`.
        well_formed: The answer ended by itself, and its tags are right.
        cut: Numbers of the threads that are known to have been cut.
    """
    promises = document.promises
    chunks = [promise.chunk.text if promise.chunk else "" for promise in promises]
    parts = sum(promise.topic != INTRODUCTION for promise in promises)
    listed = _longest_list(document.text)
    # "Three advantages and three drawbacks" are two lists of three, with six promises.
    items = listed if listed > 1 else parts
    counts = Counter(
        malformed=int(not well_formed),
        loop=int(repeats_itself(document.text)),
        runaway=int(max(parts, listed) > (_RUNAWAY if well_formed else _RUNAWAY_CUT)),
        miscount=int(items > 1 and items != (asked_count(prompt) or items)),
        formless=int(lacks_form(form, document.text)),
        unfinished=int(document.text.rstrip("* \n").endswith(":")),
        same_topic=len(promises) - len({frozenset(promise.topic.lower().split()) for promise in promises}),
        empty=sum(not _has_words(chunk) for chunk in chunks),
        cut=sum(
            _has_words(text) and (number in cut or _ends_within(text))
            for number, text in enumerate(chunks, 1)
        ),
        repeat=sum(_repeats(document)),
        off_topic=sum(_off_topic(document)),
        unspaced=sum(_unspaced(document)),
    )
    return Faults(len(promises), counts)


def soundness(faults: Faults) -> float:
    """1 without faults, at least 0. A fault takes off its weight, a promise's for the share that has it."""
    whole = sum(weight * faults.counts[name] for name, weight in OF_ANSWERS.items())
    parts = sum(weight * faults.counts[name] for name, weight in OF_PROMISES.items())
    return max(0.0, 1.0 - whole - parts / max(1, faults.promises))


def repeats_itself(text: str) -> bool:
    """True if a text loops: over a fifth of its stretches of eight words, or of its lines, come again.

    A line counts from three words on.
    """
    lines = [tuple(words(line)) for line in text.splitlines()]
    lines = [line for line in lines if len(line) >= _LOOP_LINE]
    stretches = runs(words(text), _LOOP_RUN)
    return any(parts and 1 - len(set(parts)) / len(parts) > _LOOP_SHARE for parts in (stretches, lines))


def _longest_list(text: str) -> int:
    """Items of the longest list: a run of lines with a marker, without another line at the margin between."""
    kinds = [bool(_ITEM.match(line)) for line in text.splitlines() if line[:1].strip()]
    return max((len(list(group)) for item, group in groupby(kinds) if item), default=0)


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _ends_within(chunk: str) -> bool:
    """True if a chunk ends within a sentence."""
    line = chunk.rstrip().rpartition("\n")[2].rstrip()
    if not _OPEN_END.search(line):
        return False
    open_word = not _NO_END.isdisjoint(words(line)[-1:])
    return line.endswith(",") or open_word or _SENTENCE_END.search(line) is not None


def _repeats(document: Document) -> Iterator[bool]:
    """One value for each chunk with words: True if it repeats what stands before it."""
    before = set[tuple[str, ...]]()
    for node in document.nodes:
        stretches = runs(words(node.text), _REPEAT_RUN)
        if isinstance(node, Promise) and stretches:
            yield sum(run in before for run in stretches) / len(stretches) >= _REPEAT_SHARE
        before.update(stretches)


def _off_topic(document: Document) -> Iterator[bool]:
    """One value for each chunk with words: True if it does not speak about its topic."""
    line = ""
    for node in document.nodes:
        if isinstance(node, Promise) and _has_words(node.text):
            chunk = words(line + node.text)
            topic = [word for word in words(node.topic) if word not in _NO_TOPIC]
            yield bool(topic) and not any(same_stem(word, other) for word in topic for other in chunk)
        line = (line + node.text).rstrip().rpartition("\n")[2] + " "


def _unspaced(document: Document) -> Iterator[bool]:
    """One value for each chunk that is not empty: True if a space is missing at one of its ends."""
    text = document.text
    end = 0
    for node in document.nodes:
        start, end = end, end + len(node.text)
        if isinstance(node, Promise) and node.text:
            edges = (text[max(0, start - 1) : start + 1], text[end - 1 : end + 1])
            yield any(map(_UNSPACED.fullmatch, edges))
