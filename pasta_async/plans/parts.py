"""The parts of a plan that is being filled: their contexts, their outputs, and the document they make."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json

from pasta_async.grammar import Grammar, GrammarKind
from pasta_async.interpreter.reading import overlap
from pasta_async.interpreter.state import RequestLog
from pasta_async.lang.document import Chunk, Document, Node, Promise, Sync, Text, rounded_estimate
from pasta_async.lang.views import Segment, views
from pasta_async.plans.plan import Hole, Plan
from pasta_async.results import ThreadRecord

_DECODER = json.JSONDecoder()
_KEY = re.compile(r"""\s*[{,]\s*("(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*")\s*:\s*""", re.ASCII)
"""A key of an object, with the sign in front of it and the colon behind it."""
_ITEM = re.compile(r"\s*[\[,]\s*(?=\{)")
"""The sign in front of an object in an array."""


@dataclass(slots=True, eq=False, kw_only=True)
class HolePart(RequestLog):
    """A hole while it is written. A hole of a list's items is one part for each item."""

    hole: Hole
    path: str
    """`stars`, or `sections[2].text`."""
    item: int | None = None
    """Index of the list's item; None for a hole of the answer itself."""
    output: str = ""
    """The decoded text, and behind it the characters that close it if it was cut off."""
    held: str = ""
    """Decoded free text that is held back: it may be the beginning of a text that ends the hole."""
    start: str = ""
    """Text in front of the output that makes it an object: `{"key":`, or nothing."""
    values: dict[str, str] = field(default_factory=dict[str, str])
    """The JSON text of each key, once it is whole; free text by the hole's name."""
    was_truncated: bool = False
    """True if it was cut off at its token limit, and closed."""
    discarded: int = 0
    """Generated tokens of requests that failed."""
    shown: Counter[str] = field(default_factory=Counter[str])
    """Characters of each key's value that a reader has seen."""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def free_text(self, new: str, *, is_whole: bool = False) -> tuple[str, bool]:
        """Take more free text. Returns the part of it that is certain, and True if the hole ends there.

        White space at the end, and what may be the beginning of a text that ends the hole, is held back until
        more follows, or the text `is_whole`.
        """
        waiting = self.held + new
        if not self.output:
            waiting = waiting.lstrip()
        # The character in front counts: the line break before an empty hole may begin an end that is longer,
        # and a sign behind a digit may be part of a number.
        before = (self.output or self.hole.head.rstrip(" \t"))[-1:]
        text = before + waiting
        starts = {end: 0 if before == "\n" != end else len(before) for end in self.hole.ends}
        signs = _NUMBER_SIGNS if self.hole.keeps_numbers else ()
        positions = [_find_end(text, end, start, signs, is_whole=is_whole) for end, start in starts.items()]
        position = min((position for position in positions if position >= 0), default=-1)
        if position >= 0:
            certain = max(0, position - len(before))
        elif is_whole:
            certain = len(waiting)
        else:
            undecided = max((_undecided(text, end, start, signs) for end, start in starts.items()), default=0)
            certain = max(0, len(waiting) - undecided)
        delta = waiting[:certain].rstrip()
        self.held = waiting[len(delta) :]
        self.output += delta
        return delta, position >= 0

    def raw_values(self) -> dict[str, str]:
        """The JSON text of each key so far; none for free text."""
        if self.hole.schema is None:
            return {}
        text = self.start + self.output
        return {key: text[place] for key, place in _fields(text)}

    def key_path(self, key: str) -> str:
        """The path of one of its keys: `sections[2].text`."""
        return key if self.item is None else f"{self.hole.list_of}[{self.item}].{key}"

    def record(self) -> ThreadRecord:
        """The part as users see it: a thread."""
        return self.record_with(
            topic=self.path,
            estimate=self.hole.tokens,
            text=self.output,
            discarded_tokens=self.discarded,
            closed_by="budget" if self.was_truncated else None,
        )


def item_path(hole: Hole, item: int | None) -> str:
    """The path of a hole's part: for an item of a list `sections[2].text`."""
    return hole.name if item is None else hole.name.replace("[]", f"[{item}]", 1)


class Layout:
    """The places of a plan's holes in a model's context and in the answer, for a kind of grammar.

    Args:
        plan: The plan.
        grammars: Those that the backend takes. `lark` lets a hole's output go on inside an object that its
            context begins, as a model would write it. Else each hole's output is an object by itself.
    """

    def __init__(self, plan: Plan, grammars: Collection[GrammarKind]) -> None:
        self._plan = plan
        self._kind: GrammarKind = "lark" if "lark" in grammars else "json_schema"
        self._order = [*(plan.schema or {}).get("properties", ())]  # keys of the answer's object

    def grammar(self, hole: Hole) -> Grammar | None:
        """The grammar of a hole's output; None for free text.

        On a server the grammar allows further keys behind the hole's own one. A model that expects more
        fields writes a comma there; if the grammar forbade it, the model would lengthen a number instead
        (1200 for 120). `ended_object` cuts the output at that comma.
        """
        if hole.schema is None:
            return None
        if hole.key is None:
            return Grammar.of_schema(hole.schema, compact=self._kind == "lark")
        if self._kind == "json_schema":
            return Grammar.of_schema({**hole.schema, "additionalProperties": True}, compact=False)
        return Grammar.of_value(hole.value_schema)

    def ended_object(self, hole: Hole, output: str) -> str | None:
        """The object of a hole's key alone, once its output goes on with another key; None before that."""
        if self._kind == "lark" or hole.key is None:
            return None
        _, value = next(_fields(output), ("", slice(0)))
        is_ended = value.stop and output[value.stop :].lstrip().startswith(",")
        return f"{output[: value.stop]}}}" if is_ended else None

    def key_text(self, hole: Hole) -> str:
        """The text that a hole's output has beside its value: its key, with signs and white space."""
        if self._kind == "lark" or hole.key is None:  # the context has the key
            return ""
        return f"{{\n  {json.dumps(hole.key, ensure_ascii=False)}: \n}}"

    def context(self, part: HolePart, visible: Sequence[HolePart]) -> tuple[str, tuple[Segment, ...]]:
        """The context of a part, without the prompt.

        Args:
            part: The part.
            visible: The parts that it sees, in the order of the document.

        Returns:
            A text that is the same for parts with equal dependencies, since they share a context; and this
            part's full context.
        """
        if self._plan.is_tagged:
            return "".join(part.hole.after), views(self.tagged_document(visible, part.hole))[-1].context
        shared, rest = self._context(part, visible)
        return shared, (Segment(shared + rest),)

    def tagged_document(self, parts: Iterable[HolePart], last: Hole | None = None) -> Document:
        """The document of a template in rounds, with the tags that main and the threads would have written.

        Args:
            parts: The parts that are written, or those at least that the last hole sees.
            last: The hole to end at, with an empty chunk; None: all holes are written.
        """
        values = {part.hole.name: part.values.get(part.hole.name) for part in parts}
        nodes: list[Node] = []
        joined: tuple[str, ...] = ()
        for hole in self._plan.holes:
            # A hole that sees more than the ones before it begins a new round, behind a sync.
            if hole.after != joined:
                nodes.append(Sync())
                joined = hole.after
            # The fixed text is main's, except for a space at its end: a word's token includes that.
            head = hole.head.rstrip(" ")
            if head:
                nodes.append(Text(head))
            # Holes that the last one sees have their chunks; others of its round have promises alone.
            inside = None
            if last is None or hole.name in last.after:
                inside = (Text(hole.head[len(head) :] + (values[hole.name] or "")),)
            elif hole is last:
                inside = ()
            chunk = None if inside is None else Chunk(inside)
            nodes.append(Promise(hole.name.replace("_", " "), rounded_estimate(hole.tokens), chunk))
            if hole is last:
                return Document(tuple(nodes))
        if self._plan.tail:
            nodes.append(Text(self._plan.tail))
        return Document(tuple(nodes))

    def _context(self, part: HolePart, visible: Sequence[HolePart]) -> tuple[str, str]:
        """The context without tags: the text that parts with equal dependencies share, and the rest."""
        if self._plan.is_text:
            shared = "".join(other.hole.head + other.values[other.hole.name] for other in visible)
            head = part.hole.head.rstrip(" ")  # a word's token includes the space in front of it
            return shared, head if shared else head.lstrip("\n")
        if part.hole.key is None:
            return "", ""  # the whole object is one hole
        # The visible keys of the answer's object, in the order of the schema.
        keys = [key for other in visible if other.hole.list_of is None for key in other.values]
        by_path = {other.path: other for other in visible}
        outer = {key: self.value(key, by_path)[0] for key in self._order if key in keys}
        if part.hole.list_of is None:
            return self._object(outer, part.hole)
        # A part of an item: the object with the list's outline in it, which the list's parts share.
        key = part.hole.list_of
        outline = next(other for other in visible if other.hole.name == key)
        shared = f"{{{_listed({**outer, key: outline.values[key]})}}}\n"
        # Then the item once more, with its own parts that are visible, up to the hole.
        fields = _items(outline.values[key])[part.item or 0]
        for other in visible:
            if other.hole.list_of and other.item == part.item:
                fields |= other.values
        before, rest = self._object(fields, part.hole)
        return shared, before + rest

    def start(self, hole: Hole) -> str:
        """The text in front of a hole's output that makes it an object: `{"key":`, or nothing."""
        is_inside = self._kind == "lark" and hole.key is not None
        return f"{{{json.dumps(hole.key, ensure_ascii=False)}:" if is_inside else ""

    def _object(self, fields: Mapping[str, str], hole: Hole) -> tuple[str, str]:
        """An object with these fields, up to a hole: the text that parts share, and the rest."""
        start = self.start(hole)
        if not fields:
            return "", start
        if self._kind == "json_schema":
            return f"{{{_listed(fields)}}}\n", ""
        return f"{{{_listed(fields)}, ", start.removeprefix("{")

    def document(self, parts: Mapping[str, HolePart]) -> str:
        """The text of the answer in order, up to the first part that is not written yet."""
        if self._plan.is_text:
            return self._text(parts)
        if self._plan.holes[0].key is None:  # the whole object is one hole
            return "".join(part.output.strip() for part in parts.values())
        written = "{"
        for number, key in enumerate(self._order):
            raw, is_whole = self.value(key, parts)
            if raw:
                written += f"{', ' if number else ''}{json.dumps(key, ensure_ascii=False)}: {raw}"
            if not is_whole:
                return written
        return written + "}"

    def value(self, key: str, parts: Mapping[str, HolePart]) -> tuple[str, bool]:
        """The JSON text of one of the answer's keys so far, and True if that is all of it."""
        if (part := parts.get(key)) is None:
            return "", False
        if key in self._plan.lists:
            return self._list(key, part, parts)
        if part.values:
            return part.values[key], True
        return part.raw_values().get(key, ""), False

    def _list(self, key: str, outline: HolePart, parts: Mapping[str, HolePart]) -> tuple[str, bool]:
        """The text of a list: items put together from outline and parts, up to the first gap."""
        # Without the outline nothing of the list can be shown.
        if not outline.values:
            return "", False
        holes = [hole for hole in self._plan.holes if hole.list_of == key]
        items: list[str] = []
        for number, fields in enumerate(_items(outline.values[key])):
            # The first item with an unfinished part ends the text: what follows is not in order yet.
            item_parts = [part for hole in holes if (part := parts.get(item_path(hole, number)))]
            if len(item_parts) < len(holes) or not all(part.values for part in item_parts):
                return "[" + "".join(f"{text}, " for text in items), False
            # The outline has some of the item's fields, each part has others; the schema says their order.
            for part in item_parts:
                fields |= part.values
            order = [name for name in self._plan.lists[key].order if name in fields]
            items.append(f"{{{_listed({name: fields[name] for name in order})}}}")
        return f"[{', '.join(items)}]", True

    def _text(self, parts: Mapping[str, HolePart]) -> str:
        written = ""
        for hole in self._plan.holes:
            part = parts.get(hole.name)
            written += hole.head + ("" if part is None else part.output)
            if part is None or not part.values:
                return written
        return written + self._plan.tail


def _fields(text: str) -> Iterator[tuple[str, slice]]:
    """The keys in the JSON text of an object whose end may be missing, with the places of their values."""
    position = 0
    while key := _KEY.match(text, position):
        begin = key.end()
        try:
            _, position = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            position = len(text)  # a value that cannot be read reaches to the end of the text
        yield json.loads(key[1]), slice(begin, position)


def _items(text: str) -> list[dict[str, str]]:
    """The JSON text of each field of each object in that of a whole array. Numbers keep all their digits."""
    items: list[dict[str, str]] = []
    position = 0
    while sign := _ITEM.match(text, position):
        _, position = _DECODER.raw_decode(text, sign.end())
        item = text[sign.end() : position]
        items.append({name: item[place] for name, place in _fields(item)})
    return items


def value_so_far(raw: str) -> str:
    """The characters of a string whose JSON text may be cut off; for another value its JSON text."""
    if not raw.startswith('"'):
        return raw
    try:
        return from_json(raw, allow_partial="trailing-strings")
    except ValueError:  # a backend that does not keep to the grammar; the end of the output shows it
        return ""


def _listed(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {raw}" for key, raw in fields.items())


_NUMBER_SIGNS = (".", ",", ":")
"""Signs that are part of a number, a time or the like between two digits."""


def _find_end(text: str, end: str, start: int, signs: Sequence[str], *, is_whole: bool) -> int:
    """The position of a text that ends a hole, at or behind `start`; -1 if it is not there, or not certain.

    One of the `signs` between digits ends no hole, so one behind a digit waits for the next character, unless
    the text is whole.
    """
    position = text.find(end, start)
    while position >= 0 and end in signs and text[:position][-1:].isdigit():
        following = text[position + 1 : position + 2]
        if (following and not following.isdigit()) or (is_whole and not following):
            break
        position = text.find(end, position + 1)
    return position


def _undecided(text: str, end: str, start: int, signs: Sequence[str]) -> int:
    """The number of characters at a text's end, from `start` on, that may turn out to begin `end`."""
    if end in signs:
        return 1 if text[start:].endswith(end) and text[-2:-1].isdigit() else 0
    return overlap(text[start:], end)
