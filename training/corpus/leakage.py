"""Keeps evaluation prompts out of training data.

Three rules, on prompts that were normalised (Unicode NFKC, case folded, everything but letters and digits a
space):

exact
    The two are equal.
near
    Their sets of shingles (every run of `SHINGLE` characters) have a Jaccard index of at least `NEAR`. Among
    the labelled pairs of the tests, prompts that were only reworded have 0.73 or more, and prompts that only
    ask alike ("the capital of France", "the capital of Spain") 0.61 or less.
inside
    At least `INSIDE` of the evaluation prompt's shingles are in the training prompt, if it has `INSIDE_WORDS`
    words or more: an evaluation prompt with something around it. (GPT-3's authors looked for shared n-grams
    of 8 to 13 words, arXiv 2005.14165, appendix C.)

Shingles are compared exactly, through an index of the evaluation prompts' shingles: a few thousand prompts to
keep out are few enough that nothing has to be estimated (by MinHash, say).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pasta_async.training.corpus.record import Record

__all__ = ["INSIDE", "INSIDE_WORDS", "NEAR", "SHINGLE", "LeakageFilter", "Overlap", "normalise"]

SHINGLE = 5
NEAR = 0.7
INSIDE = 0.95
INSIDE_WORDS = 8

_RULES = ("exact", "near", "inside")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Why a prompt is kept out."""

    rule: Literal["exact", "near", "inside"]
    prompt: str
    """The evaluation prompt that it meets."""
    likeness: float
    """Jaccard index, or for `inside` the share of the evaluation prompt; 0 to 1."""


@dataclass(slots=True)
class LeakageFilter:
    """Finds prompts that would leak evaluation prompts into training, and counts them.

    Args:
        prompts: What models are evaluated on.
    """

    prompts: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter[str])
    """Records that `keep` left out: by rule, and those `repeated`."""
    _exact: dict[str, int] = field(default_factory=dict[str, int], repr=False)
    _sizes: list[int] = field(default_factory=list[int], repr=False)
    _long: list[bool] = field(default_factory=list[bool], repr=False)
    _index: defaultdict[str, list[int]] = field(
        default_factory=lambda: defaultdict[str, list[int]](list), repr=False
    )

    def __post_init__(self) -> None:
        for number, prompt in enumerate(self.prompts):
            text = normalise(prompt)
            shingles = _shingles(text)
            self._exact.setdefault(text, number)
            self._sizes.append(len(shingles))
            self._long.append(len(text.split()) >= INSIDE_WORDS)
            for shingle in shingles:
                self._index[shingle].append(number)

    def find(self, prompt: str) -> Overlap | None:
        """The evaluation prompt that a prompt leaks, if there is one."""
        text = normalise(prompt)
        if not text:
            return None
        if (number := self._exact.get(text)) is not None:
            return Overlap("exact", self.prompts[number], 1.0)
        shingles = _shingles(text)
        shared = Counter(number for shingle in shingles for number in self._index.get(shingle, ()))
        best: Overlap | None = None
        for number, common in shared.items():
            jaccard = common / (len(shingles) + self._sizes[number] - common)
            inside = common / self._sizes[number] if self._long[number] else 0.0
            if jaccard >= NEAR and (best is None or jaccard > best.likeness):
                best = Overlap("near", self.prompts[number], jaccard)
            elif inside >= INSIDE and best is None:
                best = Overlap("inside", self.prompts[number], inside)
        return best

    def keep(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records that leak nothing and repeat no earlier one; the others go into `counts`.

        Everything that the user says in a record is compared.
        """
        seen: set[str] = set()
        for record in records:
            if record.id in seen:
                self.counts["repeated"] += 1
                continue
            seen.add(record.id)
            said = [message["content"] for message in record.messages if message["role"] == "user"]
            found = next(filter(None, map(self.find, said)), None)
            if found is None:
                yield record
            else:
                self.counts[found.rule] += 1

    def summary(self) -> str:
        """What was left out so far, in words."""
        repeated = f"{self.counts['repeated']} left out as repeated"
        if not self.prompts:
            return f"{repeated}, none compared with evaluation prompts"
        leaks = ", ".join(f"{self.counts[rule]} {rule}" for rule in _RULES)
        return f"{repeated}, as leaking one of {len(self.prompts)} evaluation prompts: {leaks}"


def normalise(prompt: str) -> str:
    """A prompt by its letters and digits alone, in one case, with single spaces."""
    folded = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def _shingles(text: str) -> set[str]:
    padded = f" {text} "  # so that where words begin and end counts, at the ends too
    return {padded[start : start + SHINGLE] for start in range(max(1, len(padded) - SHINGLE + 1))}
