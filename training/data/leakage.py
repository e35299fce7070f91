"""A filter for records that would leak evaluation prompts into training.

Texts are normalised first (Unicode NFKC, case folded, everything but letters and digits a space), and
compared exactly by their shingles, every run of `SHINGLE` characters: a few thousand evaluation prompts are
few enough that nothing has to be estimated (by MinHash, say). docs/training.md has the rules with examples.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from pasta_async.protocol import Message

SHINGLE = 5
NEAR = 0.7
"""Least Jaccard index. Of the tests' prompts, reworded ones have 0.73 or more, others 0.61 or less."""
INSIDE = 0.95
"""Least share of an evaluation prompt's shingles in a training prompt that leaks it; see `INSIDE_WORDS`."""
INSIDE_WORDS = 8
"""Least words of an evaluation prompt for `INSIDE` (GPT-3: n-grams of 8 to 13, arXiv 2005.14165, app. C)."""
SHORT_WORDS = 4
"""Evaluation prompts of at least so many words may not be quoted in a prompt or an answer."""

Rule = Literal["exact", "near", "inside", "answer"]
"""The rule by which a record is kept out."""


class LeakageFilter:
    """Finds prompts and answers that would leak evaluation prompts into training."""

    def __init__(self, prompts: Iterable[str]) -> None:
        texts = [_normalise(prompt) for prompt in prompts]
        self._exact = set(texts)
        self._long = [len(text.split()) >= INSIDE_WORDS for text in texts]
        self._quotable = [f" {text} " for text in texts if len(text.split()) >= SHORT_WORDS]
        self._sizes = [len(_shingles(text)) for text in texts]
        self._with_shingle: defaultdict[str, list[int]] = defaultdict(list)
        """The numbers of the evaluation prompts that have a shingle."""
        for number, text in enumerate(texts):
            for shingle in _shingles(text):
                self._with_shingle[shingle].append(number)

    def find(self, prompt: str) -> Rule | None:
        """The rule by which a prompt leaks an evaluation prompt; None if it does not."""
        text = _normalise(prompt)
        if not text:
            return None
        if text in self._exact:
            return "exact"
        shingles = _shingles(text)
        shared = Counter(number for shingle in shingles for number in self._with_shingle.get(shingle, ()))
        inside = False
        for number, count in shared.items():
            size = self._sizes[number]
            if count / (len(shingles) + size - count) >= NEAR:
                return "near"
            if self._long[number] and count / size >= INSIDE:
                inside = True
        return "inside" if inside or self._quotes(text) else None

    def _quotes(self, text: str) -> bool:
        """True if an evaluation prompt stands in a text, word for word."""
        return any(known in f" {text} " for known in self._quotable)

    def find_in(self, messages: Sequence[Message], answer: str) -> Rule | None:
        """The rule by which a message of a conversation leaks, or its answer; None if nothing does."""
        turns = [(message["role"], message["content"]) for message in messages]
        for role, text in (*turns, ("assistant", answer)):
            if role != "assistant":
                rule = self.find(text)
            else:
                rule = "answer" if self._quotes(_normalise(text)) else None
            if rule:
                return rule
        return None


def _normalise(prompt: str) -> str:
    """A prompt by its letters and digits alone, in one case, with single spaces."""
    folded = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def _shingles(text: str) -> set[str]:
    padded = f" {text} "  # so that the first and last word begin and end at a space, too
    return {padded[start : start + SHINGLE] for start in range(max(1, len(padded) - SHINGLE + 1))}
