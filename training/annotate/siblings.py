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
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_async.lang import Promise, Sync, Text

if TYPE_CHECKING:
    from pasta_async.lang import Document

__all__ = ["sibling_reference", "sibling_references"]

_LISTS: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("siblings.toml").read_text(encoding="utf-8")
)


def _pattern(name: str) -> re.Pattern[str]:
    text = "|".join(_LISTS["phrases"][name])
    for kind, words in _LISTS["words"].items():
        text = text.replace(f"{{{kind}}}", f"(?:{'|'.join(words)})")
    return re.compile(rf"\b(?:{text})\b".replace(" ", r"\s+"), re.IGNORECASE)


_ELSEWHERE, _CONNECTING, _PRONOUN = map(_pattern, ("elsewhere", "connecting", "pronoun"))
_CONTRASTING = re.compile(
    r"[^.!?]*,\s+(?:instead|likewise|similarly|conversely|on the other hand"
    r"|(?:in|by) (?:contrast|comparison)),",
    re.IGNORECASE,
)
"""Connecting words inside of the first sentence."""
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
    """The phrase with which a chunk refers to a sibling, or None.

    Args:
        chunk: Its text; at least one chunk of the same round stands before it.
        before: What main wrote between that chunk and this one.
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
        if isinstance(node, Text):
            before += node.text
        elif isinstance(node, Sync):
            siblings = 0
        elif isinstance(node, Promise):
            number += 1
            phrase = sibling_reference(node.chunk.text, before) if node.chunk and siblings else None
            found += [(number, phrase)] if phrase else []
            siblings, before = siblings + 1, ""
    return found
