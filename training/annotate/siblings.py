"""Does a chunk refer to a sibling, which its thread will not see? A heuristic for English, by words alone.

It says yes if the chunk

1. names what stands elsewhere: "the former", "as mentioned above", "the previous step", "in step 2", "both
of these"; 2. begins by leaning on what comes before it: "However,", "In contrast", "As a result", "After
that"; 3. begins with a pronoun ("It", "They", "These ..."), and main wrote no word between the chunk before
and this one
   that the pronoun could stand for. An "it" that stands for nothing ("It is important to ...") is let pass.

What it cannot see: a name or a number that only a sibling explains ("the dough", "so 11 in all"), and other
languages. docs/data.md has its precision and recall on labelled examples.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pasta_async.lang import Promise, Sync, Text

if TYPE_CHECKING:
    from pasta_async.lang import Document

__all__ = ["sibling_reference", "sibling_references"]

_PART = (
    "(?:steps?|points?|sections?|paragraphs?|items?|options?|examples?|ideas?|methods?|ones?|tips?|stages?|parts?|approach"
    "(?:es)?|arguments?|reasons?|phases?|choices?|entry|entries|category|categories|type|types|two|three)"
)
_ORDINAL = "(?:first|second|third|fourth|fifth)"
_TOLD = (
    "(?:mentioned|noted|described|discussed|explained|stated|said|shown|listed|outlined"
    "|seen|defined|introduced)"
)

_ELSEWHERE = re.compile(
    rf"""\bthe\ (?:former|latter)\b
    | \b(?:above-?mentioned|aforementioned)\b
    | \b{_TOLD}\ (?:above|before|earlier|previously)\b
    | \b(?:previously|already)\ {_TOLD}\b
    | \bthe\ above\ \w+
    | \b(?:see|like|unlike)\ above\b
    | \b(?:the|this|that|these|those|any|each)\ (?:previous|preceding|prior|earlier|above|other)\ {_PART}\b
    | \b(?:in|from|after|before|like|unlike|than|to|of|with|see|repeat|under|and)
      \ (?:steps?|points?|parts?|items?|options?|methods?|sections?|tips?|reasons?)
      \ (?:\d+|one|two|three|four|five|(?-i:[A-D]))\b
    | \b(?:like|unlike|than|with|to|from|as|over|of)\ the\ {_ORDINAL}\ {_PART}\b
    | \b(?:like|unlike|than)\ the\ (?:other|{_ORDINAL}|previous|rest)s?\b
    | \b(?:both|either|neither|each|all|any|none)\ of\ (?:these|those|them|the\ above)\b
    | \bthe\ same\ (?:\w+\ )?as\ (?:before|above|in\ the\ (?:previous|{_ORDINAL}))\b
    | \bas\ (?:before|above)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LEANING = re.compile(
    r"""(?:however|in\ contrast|by\ contrast|conversely|on\ the\ other\ hand|similarly|likewise|in\ the\
    same\ way |instead|otherwise|therefore|thus|hence|consequently|as\ a\
    (?:result|consequence)|accordingly|nevertheless |nonetheless|even\ so|by\ comparison|in\
    comparison|that\ said|this\ means|which\ means|that\ is\ why|this\ is\ why
    |(?:because|despite|instead|on\ top|as\ part)\ of\ (?:this|that|these|those|it|them)
    |(?:for|from|with|after|before|unlike|like|despite|besides|beyond|by|given|building\ on)
      \ (?:this|that|these|those|it|them|doing\ so)
    |(?:once|when|after|while|until|if)\ (?:this|that|it|they|these|those|both)
      \ (?:is|are|has|have|was|were|does|do|starts?)
    |but|yet|so)\b(?!\ (?:far\ from|that))""",
    re.VERBOSE | re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"""(?:it|they|he|she|its|their|his|this|these|those(?!\ (?:who|that|with|in))|such(?!\ as)|the\ two
    |both\ (?:are|have|were|can|will|share|offer|use|need|come)|either\ (?:is|way|one))\b""",
    re.VERBOSE | re.IGNORECASE,
)
_EXPLETIVE = re.compile(
    r"it(?:['\u2019]s| is| was| can be| may be| might be| will be| takes?| helps| pays| rain\w*| snow\w*)\b"
    r"(?=.{0,60}\b(?:to|that|when|if|how|why|what|whether|until)\b| (?:rain|snow|getting|cold|dark|time))",
    re.IGNORECASE,
)
_OPENING = re.compile(r"[^\w]*")
_NAMING = re.compile(r"[^\W\d_]{2,}")


def sibling_reference(chunk: str, before: str) -> str | None:
    """What a chunk refers to a sibling with, if it does.

    Args:
        chunk: Its text; at least one chunk of the same round stands before it.
        before: What main wrote between that chunk and this one.

    Returns:
        The words that refer, or None.
    """
    if found := _ELSEWHERE.search(chunk):
        return found[0]
    start = _OPENING.match(chunk)
    opening = start.end() if start else 0
    if found := _LEANING.match(chunk, opening):
        return found[0]
    found = _PRONOUN.match(chunk, opening)
    if found and not _NAMING.search(before) and not _EXPLETIVE.match(chunk, opening):
        return found[0]
    return None


def sibling_references(document: Document) -> list[tuple[int, str]]:
    """The chunks that refer to a sibling of their round: the number of their thread, and the words."""
    found: list[tuple[int, str]] = []
    number, siblings, before = 0, 0, ""
    for node in document.nodes:
        match node:
            case Text(text):
                before += text
            case Sync():
                siblings = 0
            case Promise(chunk=chunk):
                number += 1
                words = sibling_reference(chunk.text, before) if chunk and siblings else None
                found += [(number, words)] if words else []
                siblings, before = siblings + 1, ""
            case _:
                pass
    return found
