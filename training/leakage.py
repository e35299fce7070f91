"""What would leak evaluation prompts, or their answers, into training.

Texts are normalised first (Unicode NFKC, case folded, everything but letters and digits a space), and
compared exactly by their shingles, every run of `SHINGLE` characters: a few thousand evaluation prompts are
few enough that nothing has to be estimated (by MinHash, say). docs/data.md has the rules with examples.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pasta_async.protocol import Message

SHINGLE = 5
NEAR = 0.7
"""Least Jaccard index. Of the tests' prompts, reworded ones have 0.73 or more, others 0.61 or less."""
INSIDE = 0.95
"""Least share of an evaluation prompt's shingles that are in the training prompt..."""
INSIDE_WORDS = 8
"""...if it has so many words (GPT-3's authors took n-grams of 8 to 13, arXiv 2005.14165, appendix C)."""
SHORT_WORDS = 4
"""Evaluation prompts of at least so many words may not be quoted in a prompt or an answer."""
COPIED = 0.5
"""Least share of an evaluation answer's runs of `INSIDE_WORDS` words that a training answer has."""


class Overlap(NamedTuple):
    """Why a record is kept out: the rule, and the evaluation prompt, or answer, that it meets."""

    rule: Literal["exact", "near", "inside", "answer"]
    prompt: str


class LeakageFilter:
    """Finds what would leak evaluation prompts or their answers into training."""

    def __init__(self, prompts: tuple[str, ...], answers: tuple[str, ...] = ()) -> None:
        self.prompts: tuple[str, ...] = prompts
        self.answers: tuple[str, ...] = answers
        self._texts = [_normalise(prompt) for prompt in prompts]
        self._exact = dict(zip(self._texts, prompts, strict=True))
        self._long = [len(text.split()) >= INSIDE_WORDS for text in self._texts]
        self._shingles = [_shingles(text) for text in self._texts]
        self._runs = [_runs(_normalise(answer), INSIDE_WORDS) for answer in answers]
        self._by_shingle = _index(self._shingles)
        self._by_start = _index(_runs(text, SHORT_WORDS)[:1] for text in self._texts)
        self._by_run = _index(self._runs)

    def find(self, prompt: str) -> Overlap | None:
        """The evaluation prompt that a prompt leaks, if there is one."""
        text = _normalise(prompt)
        if not text:
            return None
        if text in self._exact:
            return Overlap("exact", self._exact[text])
        shingles, near, inside = _shingles(text), dict[int, float](), dict[int, float]()
        for number, shared in _shared(self._by_shingle, shingles).items():
            size = len(self._shingles[number])
            near[number] = shared / (len(shingles) + size - shared)
            if self._long[number]:
                inside[number] = shared / size
        if near and max(near.values()) >= NEAR:
            return Overlap("near", self.prompts[max(near, key=near.__getitem__)])
        if inside and max(inside.values()) >= INSIDE:
            return Overlap("inside", self.prompts[max(inside, key=inside.__getitem__)])
        quoted = self._quoted(text)
        return None if quoted is None else Overlap("inside", quoted)

    def find_in_answer(self, answer: str) -> Overlap | None:
        """The evaluation prompt that an answer quotes, or the evaluation answer that it copies."""
        text = _normalise(answer)
        if (quoted := self._quoted(text)) is not None:
            return Overlap("answer", quoted)
        for number, shared in _shared(self._by_run, _runs(text, INSIDE_WORDS)).items():
            if shared >= COPIED * len(self._runs[number]):
                return Overlap("answer", self.answers[number])
        return None

    def _quoted(self, text: str) -> str | None:
        """The first evaluation prompt that stands in a text, word for word."""
        for number in _shared(self._by_start, _runs(text, SHORT_WORDS)):
            if f" {self._texts[number]} " in f" {text} ":
                return self.prompts[number]
        return None

    def find_in(self, messages: Sequence[Message], answer: str) -> Overlap | None:
        """What any message of a conversation leaks, or its answer."""
        said = [(message["role"], message["content"]) for message in messages]
        for role, text in (*said, ("assistant", answer)):
            if found := self.find_in_answer(text) if role == "assistant" else self.find(text):
                return found
        return None


def _index(texts: Iterable[Iterable[str]]) -> Mapping[str, list[int]]:
    """By each part of some texts the numbers of those that have it."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number, parts in enumerate(texts):
        for part in parts:
            found[part].append(number)
    return found


def _shared(index: Mapping[str, list[int]], parts: Iterable[str]) -> Counter[int]:
    """How many of some parts each text of an index has, by its number."""
    return Counter(number for part in parts for number in index.get(part, ()))


def _runs(text: str, length: int) -> list[str]:
    """Every different run of so many words, in order."""
    words = text.split()
    return [*dict.fromkeys(" ".join(words[i : i + length]) for i in range(len(words) - length + 1))]


def _normalise(prompt: str) -> str:
    """A prompt by its letters and digits alone, in one case, with single spaces."""
    folded = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def _shingles(text: str) -> set[str]:
    padded = f" {text} "  # so that where words begin and end counts, at the ends too
    return {padded[start : start + SHINGLE] for start in range(max(1, len(padded) - SHINGLE + 1))}
