"""Keeps evaluation prompts out of training data, by three rules (docs/data.md states them with examples).

Prompts are normalised first (Unicode NFKC, case folded, everything but letters and digits a space), and
compared exactly by their shingles, every run of `SHINGLE` characters: a few thousand evaluation prompts are
few enough that nothing has to be estimated (by MinHash, say).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pasta_async.training.corpus.records import Record

__all__ = ["LeakageFilter", "Overlap"]

SHINGLE = 5
NEAR = 0.7
"""Least Jaccard index. Of the tests' prompts, reworded ones have 0.73 or more, others 0.61 or less."""
INSIDE = 0.95
"""Least share of an evaluation prompt's shingles that are in the training prompt..."""
INSIDE_WORDS = 8
"""...if it has so many words (GPT-3's authors took n-grams of 8 to 13, arXiv 2005.14165, appendix C)."""


class Overlap(NamedTuple):
    """Why a prompt is kept out: the rule, and the evaluation prompt that it meets."""

    rule: Literal["exact", "near", "inside"]
    prompt: str


class LeakageFilter:
    """Finds prompts that would leak evaluation prompts (`prompts`) into training, and counts them."""

    def __init__(self, prompts: tuple[str, ...]) -> None:
        self.prompts: tuple[str, ...] = prompts
        self.counts: Counter[str] = Counter()
        """Records that `keep` left out: by rule, and those `repeated`."""
        texts = [_normalise(prompt) for prompt in prompts]
        shingles = [_shingles(text) for text in texts]
        self._exact = {text: number for number, text in reversed([*enumerate(texts)])}
        self._sizes = [len(one) for one in shingles]
        self._long = [len(text.split()) >= INSIDE_WORDS for text in texts]
        self._index: defaultdict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(shingles):
            for shingle in one:
                self._index[shingle].append(number)

    def find(self, prompt: str) -> Overlap | None:
        """The evaluation prompt that a prompt leaks, if there is one."""
        text = _normalise(prompt)
        if not text:
            return None
        if (number := self._exact.get(text)) is not None:
            return Overlap("exact", self.prompts[number])
        shingles = _shingles(text)
        shared = Counter(number for shingle in shingles for number in self._index.get(shingle, ()))
        near = {number: n / (len(shingles) + self._sizes[number] - n) for number, n in shared.items()}
        inside = {number: n / self._sizes[number] for number, n in shared.items() if self._long[number]}
        if near and max(near.values()) >= NEAR:
            return Overlap("near", self.prompts[max(near, key=near.__getitem__)])
        if inside and max(inside.values()) >= INSIDE:
            return Overlap("inside", self.prompts[max(inside, key=inside.__getitem__)])
        return None

    def keep(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records that leak nothing and repeat no earlier one; the others are added to `counts`.

        Every message of the user in a record is compared.
        """
        seen: set[str] = set()
        for record in records:
            if record.id in seen:
                self.counts["repeated"] += 1
                continue
            seen.add(record.id)
            texts = (message["content"] for message in record.messages if message["role"] == "user")
            found = next(filter(None, map(self.find, texts)), None)
            if found is None:
                yield record
            else:
                self.counts[found.rule] += 1


def _normalise(prompt: str) -> str:
    """A prompt by its letters and digits alone, in one case, with single spaces."""
    folded = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def _shingles(text: str) -> set[str]:
    padded = f" {text} "  # so that where words begin and end counts, at the ends too
    return {padded[start : start + SHINGLE] for start in range(max(1, len(padded) - SHINGLE + 1))}
