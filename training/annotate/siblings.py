"""Does a chunk refer to a sibling, which its thread will not see? A heuristic for English, by words alone.

It says yes if the chunk

1. names what stands elsewhere: "the former", "as mentioned above", "the previous step", "in step 2";
2. begins with a reference to what comes before it: "However,", "In contrast", "As a result", "After that";
3. begins with a pronoun ("It", "They", "These ..."), and main wrote no word between the chunk before and
   this one that the pronoun could stand for. An "it" that stands for nothing ("It is important to ...")
   does not count.

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


def _phrases(*phrases: str, tail: str = r"\b") -> str:
    """A pattern of phrases: a space in them is any white space, `_` one of the words for a part of a text."""
    part = (
        "(?:steps?|points?|sections?|paragraphs?|items?|options?|examples?|ideas?|methods?|ones?|tips?|stages?"
        "|parts?|approach(?:es)?|arguments?|reasons?|phases?|choices?|types?|two|three)"
    )
    return rf"\b(?:{'|'.join(phrases)}){tail}".replace("_", part).replace(" ", r"\s+")


_ORDINAL = "(?:first|second|third|fourth|fifth)"
_MENTIONED = (
    "(?:mentioned|noted|described|discussed|explained|stated|listed|outlined|seen|defined|introduced)"
)
_THESE = "(?:this|that|these|those|it|them)"

_ELSEWHERE = re.compile(
    _phrases(
        "the (?:former|latter)",
        "above-?mentioned|aforementioned",
        f"{_MENTIONED} (?:above|before|earlier|previously)",
        f"(?:previously|already) {_MENTIONED}",
        r"the above \w+",
        "(?:see|like|unlike|of the) above",
        "(?:the|this|that|these|those|any|each) (?:previous|preceding|prior|earlier|above) _",
        "(?:in|from|after|before|like|unlike|than|with|see|repeat) _ "
        r"(?:\d+|one|two|three|four|five|(?-i:[A-D]))",
        f"(?:like|unlike|than|from|as|over|of|compared to|similar to) the {_ORDINAL} _",
        "the same as (?:before|above)|as before",
        "(?:do|does) the same (?:with|for)|the same (?:goes|is true|applies|holds) (?:for|of)",
    ),
    re.IGNORECASE,
)
"""Words that name another part of the answer, anywhere in a chunk."""

_CONNECTING = re.compile(
    _phrases(
        "however(?=,)|but|yet|so(?! far)|then(?! again)|instead|otherwise|therefore|thus|hence|consequently",
        "accordingly|nevertheless|nonetheless|conversely|similarly|likewise|alternatively|even so|that said",
        "(?:in|by) (?:contrast|comparison)|on the other hand|in the same way|as a (?:result|consequence)",
        "(?:this|which) means|(?:this|that) is why|the other _",
        f"(?:because|despite|instead|on top|as part|both|either|neither|all|none) of {_THESE}",
        f"(?:for|with|after|before|unlike|like|despite|besides|beyond|by) (?:{_THESE}|doing so)",
        f"(?:once|when|after|while|until|if) (?:{_THESE}|they|both) (?:is|are|has|have|was|were|does|do)",
    ),
    re.IGNORECASE,
)
"""Words at the start of a chunk that connect it with what comes before."""

_CONTRASTING = re.compile(
    r"[^.!?]*,\s+(?:instead|likewise|similarly|conversely|on the other hand"
    r"|(?:in|by) (?:contrast|comparison)),",
    re.IGNORECASE,
)
"""The same inside of the first sentence."""

_PRONOUN = re.compile(
    _phrases(
        "it|they|he|she|its|their|his|her|that",
        "(?:this|these)(?! (?:morning|evening|day|days|week|month|year|time|spring|summer|autumn|winter))",
        "those(?! (?:who|that|with|in))|such(?! as)(?! \\w+ as)|the two",
        "both (?:are|have|were|can|will|share|offer|use|need|come)|either (?:is|way|one)",
    ),
    re.IGNORECASE,
)
_EXPLETIVE = re.compile(
    r"it(?:['\u2019]s| is| was| can be| may be| might be| will be| takes?| helps| pays| rain\w*| snow\w*)\b"
    r"(?=.{0,60}\b(?:to|that|when|if|how|why|what|whether|until)\b| (?:rain|snow|getting|cold|dark|time))",
    re.IGNORECASE,
)
_WEATHER = re.compile(
    r"\w+\s+it\s+(?:is|was)\s+(?:warm|cold|hot|dark|late|early|time|possible|safe|too)\b", re.IGNORECASE
)
_OPENING = re.compile(r"[^\w]*")
_NAMING = re.compile(r"[^\W\d_]{2,}")


def sibling_reference(chunk: str, before: str) -> str | None:
    """What a chunk refers to a sibling with, if it does.

    Args:
        chunk: Its text; at least one chunk of the same round stands before it.
        before: What main wrote between that chunk and this one.

    Returns:
        The phrase that refers, or None.
    """
    if found := _ELSEWHERE.search(chunk):
        return found[0]
    start = _OPENING.match(chunk)
    opening = start.end() if start else 0
    connecting = _CONNECTING.match(chunk, opening)
    if connecting and not _WEATHER.match(chunk, opening):
        return connecting[0]
    if found := _CONTRASTING.match(chunk, opening):
        return found[0]
    found = _PRONOUN.match(chunk, opening)
    if found and not _NAMING.search(before) and not _EXPLETIVE.match(chunk, opening):
        return found[0]
    return None


def sibling_references(document: Document) -> list[tuple[int, str]]:
    """The chunks that refer to a sibling of their round: the number of their thread, and the phrase."""
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
                phrase = sibling_reference(chunk.text, before) if chunk and siblings else None
                found += [(number, phrase)] if phrase else []
                siblings, before = siblings + 1, ""
            case _:
                pass
    return found
