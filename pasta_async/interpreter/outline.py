"""The lists that an untrained model writes by itself, read as promises: an item's head promises the item.

`OutlineParser` reads main and finds the heads: `1. **Safety**:`, `- Cost:`. Behind a head main is *led on*:
the interpreter writes the beginning of the next line for it, so that main writes heads alone. The first line
that is no further head ends the list, as a sync does. `ItemParser` reads the text that a thread writes behind
a head, and finds the item's end.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from pasta_async.lang import ChunkParser, MainParser, Promise, Reading, Sync

_MAX_ITEMS = 10
"""Items between two joins. Then main sees them whole, and decides again whether the list goes on."""

_LONGEST_HEAD = 120
_HEAD = re.compile(
    r"""(?P<marker>\d{1,3}[.)]|[-*+\u2022])[ ]
        (?:\*\*(?P<bold>[^*\n]{1,80}?)(?::\*\*|\*\*:|\*\*[ ][-\u2013\u2014])
          |(?P<plain>[^\n:*`=|<"]{2,60}):)\s*""",
    re.VERBOSE,
)
_BEGINNINGS = {
    "bold": re.compile(r"[^*\n]{0,81}\*{0,2}[ ]?"),
    "plain": re.compile(r"""[^\n:*`=|<"]{0,60}"""),
}
_DEPENDENT = re.compile(
    r"""(?:step|day|week|month|year|hour|phase|stage|round|part|level|chapter|scene|act|verse|line)\b
        |(?:first|second|third|then|next|now|finally|lastly|therefore|so|thus|here)\b
        |(?:conclu|summar|overall|in\ short|expla|result|output|example|note|answer|solution)
        |(?:instruct|direction|method\b|preparation\b)
        |(?:calculat|comput|substitut|simplif|solve|multipl|divid|subtract|add\b|set\ up|plug|evaluat|isolat)
        |.*(?:[=$\\{}]|\d\s*$)""",
    re.VERBOSE | re.IGNORECASE,
)
"""Topics of items that need the items before them: steps, calculations, summaries, explanations."""

_FENCES = ("```", "~~~")
_BREAK = re.compile(r"[ \t]*\n(?:[ \t]*\n)*")
_UNDECIDED = re.compile(r"\d{1,3}[.)]?|[-*+\u2022]|#{1,6}")
_HEADING = re.compile("#{1,6} ")
_PART = re.compile(r"[ \t|>]|(?:[-*+\u2022]|\d{1,3}[.)])[ ]")
"""Beginning of a line that belongs to the item even behind a blank line.

It is indented, or the line of an inner list, of a table or of a quotation.
"""


class Head(NamedTuple):
    """The head of a list's item: main has written up to its end."""

    marker: str
    """The item's number with the sign behind it (`1.`), or its bullet."""
    kind: Literal["bold", "plain"]
    topic: str

    @classmethod
    def read(cls, line: str) -> Head | None:
        """The head that a line forms so far; None if it is no head, or the item needs those before it."""
        if not (match := _HEAD.fullmatch(line)):
            return None
        kind = "bold" if match["bold"] else "plain"
        topic = match[kind].strip(" *:")
        if not topic or len(topic.split()) > 10 or _DEPENDENT.match(topic):
            return None
        if kind == "plain" and not match["marker"][0].isdecimal():
            return None  # "- Name: value": such items are too short for a thread
        return cls(match["marker"], kind, topic)

    @property
    def next_marker(self) -> str:
        """Marker of the list's next head."""
        number = self.marker[:-1]
        return f"{int(number) + 1}{self.marker[-1]}" if number.isdecimal() else self.marker

    @property
    def next_lead(self) -> str:
        """Text that the line of the list's next head begins with."""
        return f"{self.next_marker} **" if self.kind == "bold" else f"{self.next_marker} "

    @property
    def separator(self) -> str:
        """Text between this item and the next one: the usual one for such a marker."""
        return "\n\n" if self.marker[:-1] else "\n"

    def may_follow(self, line: str) -> bool:
        """True if the line may yet become the list's next head."""
        lead = self.next_lead
        if len(line) < len(lead):
            return lead.startswith(line)
        return line.startswith(lead) and bool(_BEGINNINGS[self.kind].fullmatch(line, len(lead)))

    def item_ends_at(self, line: str, *, blank: bool) -> bool | None:
        """True if an item ends in front of this line; None if more of the line has to be seen.

        Args:
            line: The beginning of a line, not empty, that is in no fence.
            blank: True if a blank line stands in front of it.
        """
        sign = re.escape(self.marker[-1])
        if re.match(rf"\d{{1,3}}{sign} " if self.marker[:-1] else f"{sign} ", line):
            return True
        if _UNDECIDED.fullmatch(line):
            return None
        return bool(_HEADING.match(line)) or (blank and not _PART.match(line))


class OutlineParser(MainParser):
    """Reads main, and takes the head of a list's item for a promise.

    While `leading`, text is held back until it forms the next head. If it cannot, a `Sync` is returned:
    discard the ids that were fed since the last head, and call `join`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.head: Head | None = None
        """The latest head of the current list, behind which main is led on."""
        self._topics = set[str]()  # topics of the answer's heads: a topic that comes again is no new item
        self._items = 0  # number of items in the current list
        self.is_block: bool = False
        """True if the items of the current list begin on lines of their own."""
        self._is_plain = False  # main was led on once and wrote no second head: it gets no list any more
        self._line = ""  # the beginning of the line that is being written
        self._fenced = False
        self._held = ""  # text behind the last head

    @property
    def leading(self) -> bool:
        """True from a head of a list to the join behind the list."""
        return self.head is not None

    @property
    def at_line_start(self) -> bool:
        """True if a line of the answer begins with what comes next."""
        return not self._line

    def feed_text(self, text: str) -> list[Reading]:
        """Read more text; a head is found if nothing but white space follows it in the same piece."""
        if self.head:
            self._held += text
            return self._read_next(self.head)
        # The last line that is not blank may be a head.
        recent = self._line + text
        start = recent.rstrip().rfind("\n") + 1
        self._follow(text)
        head = None if self._fenced or self._is_plain else Head.read(recent[start:])
        readings = super().feed_text(text)
        if not head or not self._is_new(head):
            return readings
        self.is_block = recent.endswith("\n")
        return [*readings, self._promise(head)]

    def join(self) -> None:
        """The list is over: main goes on behind its last item."""
        self._append(Sync())
        self.head = None
        self._is_plain = self._is_plain or self._items == 1
        self._items = 0
        self._held = ""
        self._line = " "

    def spill(self) -> list[Reading]:
        """Read the text that was held back for a next head: no head will come."""
        text = self._held
        self._held = ""
        return super().feed_text(text)

    def _follow(self, text: str) -> None:
        """Keep the beginning of the current line, and whether it is inside a fence."""
        *lines, last = text.split("\n")
        for line in lines:
            if _is_fence(f"{self._line}{line}\n", fenced=self._fenced):
                self._fenced = not self._fenced
            self._line = ""
        if len(self._line) <= _LONGEST_HEAD:
            self._line += last

    def _read_next(self, before: Head) -> list[Reading]:
        line = self._held.lstrip("\n")
        head = Head.read(line)
        if head and line.startswith(before.next_lead) and self._is_new(head) and self._items < _MAX_ITEMS:
            # Drop the line break after a bare head, unless this list puts items on their own lines.
            text = self._held if self.is_block else self._held.rstrip()
            self._held = ""
            return [*super().feed_text(text), self._promise(head)]
        return [] if not head and before.may_follow(line) else [Sync()]

    def _is_new(self, head: Head) -> bool:
        return head.topic.casefold() not in self._topics

    def _promise(self, head: Head) -> Promise:
        promise = Promise(head.topic, None)
        self.head = head
        self._topics.add(head.topic.casefold())
        self._items += 1
        self._append(promise)
        return promise


def _is_fence(text: str, *, fenced: bool) -> bool | None:
    """True if a line opens a block of code, or ends the one that it is in; None if more of it has to be seen.

    A line with code of its own between such signs is none (CommonMark).
    """
    line, line_break, _ = text.partition("\n")
    code = line.strip()
    if not line_break and (not code or any(fence.startswith(code[:3]) for fence in _FENCES)):
        return None
    if not code.startswith(_FENCES):
        return False
    signs = code[: len(code) - len(code.lstrip(code[0]))]
    return signs == code if fenced else code[0] not in code.removeprefix(signs)


class ItemParser(ChunkParser):
    """Reads an item behind its head; it is over where the next item begins, or the text behind the list.

    Args:
        head: The head.
        begins_line: True if the head ended its line.
    """

    def __init__(self, head: Head, *, begins_line: bool = False) -> None:
        super().__init__()
        self._head = head
        self._begins_line = begins_line
        self._held = ""  # white space, and the beginning of a line that may end the item
        self._fenced = False
        self._written = False  # True once the item has text that is no white space
        self.gap: str = ""
        """White space behind the item, if its thread wrote text behind that. Both are left out."""

    def feed_text(self, text: str) -> list[Reading]:
        """Read more text; text that may stand behind the item is held back."""
        if self._over:
            return []
        self._held += text
        if self._begins_line:  # the first line may open a block of code, but cannot end the item
            if (is_fence := _is_fence(self._held, fenced=False)) is None:
                return []
            self._fenced = is_fence
            self._begins_line = False
        shown = 0  # characters that belong to the item
        while line_break := _BREAK.search(self._held, shown):
            # The line behind the break says whether the item ends in front of the break.
            shown = line_break.start()
            over = self._ends_at(self._held[line_break.end() :], blank=line_break[0].count("\n") > 1)
            if over:
                self.gap = line_break[0]
                body = self._held[:shown]
                self._held = ""
                return [*self._write_body(body), self._end("nested")]
            if over is None:
                break  # the break is held back until more of the line is here
            shown = line_break.end()
        else:
            # No line break is undecided: only blanks at the end are held back, which may come before one.
            shown = len(self._held.rstrip(" \t"))
        body = self._held[:shown]
        self._held = self._held[shown:]
        return self._write_body(body)

    def close(self, *, cut: bool = False) -> list[Reading]:
        """End the item, if it is not over; white space at its end is left out."""
        if self._over:
            return []
        readings = self._write_body("" if cut else self._held.rstrip())
        self._end_text()
        return readings

    def spill(self) -> list[Reading]:
        """Read the text that was held back because the item might have ended in it."""
        text = self._held
        self._held = ""
        return self._write_body(text)

    def _ends_at(self, line: str, *, blank: bool) -> bool | None:
        """True if the item ends in front of this beginning of a line; None if more of it has to be seen."""
        if (is_fence := _is_fence(line, fenced=self._fenced)) is None:
            return None
        if is_fence:
            self._fenced = not self._fenced
        if is_fence or self._fenced:
            return False
        return self._head.item_ends_at(line, blank=blank and self._written)

    def _write_body(self, text: str) -> list[Reading]:
        self._written = self._written or bool(text.strip())
        return self._write(text)
