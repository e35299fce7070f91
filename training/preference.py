"""Sampled answers and their scores, as they are stored (JSON lines), and the pairs that stage 2 learns from.

A pair is the best and the worst answer to a prompt, by the value of their scores. The objective's derivation
needs one order of all samples: a malformed answer is below every well-formed one, and a seed decides between
equals.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Document, Node, Text, parse
from pasta_async.protocol import Message
from pasta_async.results import FinishReason, ThreadRecord
from pasta_async.training.corpus import Asked, StrictModel, read_lines
from pasta_async.training.faults import Faults, count_faults, soundness
from pasta_async.training.packing import Trie

Malformed = Literal["last", "out"]
"""Where malformed answers stand: below all others, or not in the order at all."""


class Plain(StrictModel):
    """A plain answer: greedy, without tags."""

    text: str
    tokens: int = Field(ge=0)
    """Generated, the end-of-text counted."""
    finish_reason: FinishReason = "stop"


class Sample(StrictModel):
    """One answer that was drawn, and the tokens it was drawn as."""

    number: int = Field(ge=0)
    """Its place among the answers to its prompt."""
    seed: int | None
    """Of the answer (`Sampling.seed`); None where the backend honours none."""
    text: str = ""
    """What a reader sees."""
    written: str = ""
    """With the tags."""
    finish_reason: FinishReason
    error: str = ""
    """What ended it, if an error did: the rest is what there was by then."""
    well_formed: bool = False
    """Whether it ended by itself, without a diagnostic."""
    tokens: int = Field(default=0, ge=0)
    """Generated, tags counted."""
    critical_path: int = Field(default=0, ge=0)
    """Tokens that had to be decoded one after another, tags counted."""
    threads: tuple[ThreadRecord, ...] = ()
    ids: tuple[NonNegativeInt, ...] = ()
    """The tokens that were sent and that came back, as a trie in topological order."""
    parents: tuple[int, ...] = ()
    """The index of each token's parent; -1 for the first one."""
    targets: tuple[int, ...] = ()
    """Indexes of the tokens that were sampled, ascending; all others are prompt, or were forced."""
    exact: bool = False
    """Whether the targets are the `tokens` of the answer and nothing else; others are never trained on."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        size = len(self.ids)
        if len(self.parents) != size or any(not -1 <= p < i for i, p in enumerate(self.parents)):
            raise ValueError("parents must name an earlier token for each token, or -1")
        if any(not 0 <= target < size or self.parents[target] < 0 for target in self.targets):
            raise ValueError("a target is no index of a token that has a parent")
        return self

    @property
    def document(self) -> Document:
        """What was written, read leniently."""
        return parse(self.written)

    @property
    def trie(self) -> Trie:
        """The tokens as the trainer packs them."""
        return Trie(list(self.ids), list(self.parents), list(self.targets))


class SampledPrompt(Asked):
    """The prompt of a record, its answers, and plain ones to compare with."""

    samples: tuple[Sample, ...]
    baseline: Plain
    """The baseline's, which may be another model."""
    plain: Plain | None = None
    """That of the model that drew the samples."""


class Score(StrictModel):
    """What was measured of one sample."""

    id: str
    """Of its prompt."""
    number: int
    speedup: float = Field(ge=0)
    """Theoretical: tokens of the baseline's answer / critical path."""
    quality: float = Field(ge=0, le=1)

    def value(self, weight: float) -> float:
        """Speed-up + weight * quality (lambda, paper section 4); quality alone if the weight is infinite."""
        return self.quality if math.isinf(weight) else self.speedup + weight * self.quality


@dataclass(frozen=True, slots=True)
class Pair:
    """The best and the worst of n answers to the prompt `id`."""

    id: str
    best: Sample
    worst: Sample
    n: int
    messages: Sequence[Message] = ()
    plain: Plain | None = None
    """The model's own plain answer."""


def read_samples(path: Path | str, tokens: bool = True) -> Iterator[SampledPrompt]:
    """Read a file of sampled answers, one prompt at a time; without their `tokens` samples are small.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    without: dict[str, Any] = {"ids": (), "parents": (), "targets": ()}
    for _, prompt in read_lines(path, SampledPrompt):
        if not tokens:
            samples = tuple(sample.model_copy(update=without) for sample in prompt.samples)
            prompt = prompt.model_copy(update={"samples": samples})
        yield prompt


def read_scores(path: Path | str) -> dict[tuple[str, int], Score]:
    """Read a file of scores, by prompt and number. Samples that ended in an error have none.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return {(score.id, score.number): score for _, score in read_lines(path, Score)}


def faults_of_sample(sample: Sample, prompt: str) -> Faults:
    """The faults of a sampled answer, of which is known what was asked and what ended its chunks."""
    cut = {one.thread for one in sample.threads if one.was_cut}
    return count_faults(sample.document, prompt, well_formed=sample.well_formed, cut=cut)


def choose_pairs(
    prompts: Iterable[SampledPrompt],
    scores: Mapping[tuple[str, int], Score],
    weight: float,
    seed: int = 0,
    malformed: Malformed = "last",
    sound_only: bool = False,
) -> tuple[list[Pair], Counter[str]]:
    """Choose the best and the worst of each prompt's samples.

    Samples that failed, are not exact or have no score take no part. Those that tie at the top, or at the
    bottom, are drawn for; a prompt whose best ties with its worst is left out.

    Args:
        prompts: With their samples; only those of pairs are held.
        scores: By prompt and number of the sample.
        weight: See `Score.value`.
        seed: Of the draws among equals.
        malformed: Where malformed samples stand.
        sound_only: Whether the best has no counted fault (`pasta_async.training.faults`). Where at least half
            of a prompt's samples promise, the best is then one that promises: a plain answer has no tags to
            get wrong, and a model that learns from such wins learns not to promise.

    Returns:
        The pairs, and counts: prompts and samples; samples that are failed, unscored, inexact, malformed;
        prompts that give a pair (pairs), or have fewer than two usable samples (few), none that may be
        the best (no_best), or a best that ties with the worst (ties); pairs whose best and worst have other
        tags, not only other text (restructured).

    Raises:
        InvalidRequestError: Samples and scores do not match, or no pair is left.
    """
    pairs, counts, seen = list[Pair](), Counter[str](), set[str]()
    finished: dict[tuple[str, int], bool] = {}
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidRequestError(f"the prompt {prompt.id!r} occurs more than once among the samples")
        seen.add(prompt.id)
        finished |= {(prompt.id, sample.number): not sample.error for sample in prompt.samples}
        counts.update(_count(prompt, scores))
        promising = sound_only and 2 * sum(map(_promises, prompt.samples)) >= len(prompt.samples)
        usable: list[tuple[tuple[bool, float], Sample]] = []
        for one in prompt.samples:
            score = scores.get((prompt.id, one.number))
            if score and one.exact and one.targets and (one.well_formed or malformed == "last"):
                wins = one.well_formed and (not sound_only or _is_sound(one, prompt.prompt, promising))
                usable.append(((wins, round(score.value(weight), 9)), one))
        pair = _pair(prompt, usable, random.Random(f"{seed}/{prompt.id}"))
        if isinstance(pair, str):
            counts[pair] += 1
        else:
            pairs.append(pair)
            counts.update(pairs=1, restructured=int(_structure(pair.best) != _structure(pair.worst)))
    _check(finished, scores)
    if not pairs:
        raise InvalidRequestError(f"there is nothing to prefer: 0 pairs of {dict(counts)}")
    return pairs, counts


def _pair(
    prompt: SampledPrompt, usable: Sequence[tuple[tuple[bool, float], Sample]], draw: random.Random
) -> Pair | str:
    """The pair of a prompt, or why there is none; each sample stands behind what decides its place."""
    if len(usable) < 2:
        return "few"
    places = [place for place, _ in usable]
    high, low = max(places), min(places)
    if not high[0]:
        return "no_best"
    best, worst = (draw.choice([one for place, one in usable if place == end]) for end in (high, low))
    if high == low or (best.ids, best.targets) == (worst.ids, worst.targets):  # a judge may contradict itself
        return "ties"
    return Pair(prompt.id, best, worst, len(usable), prompt.messages, prompt.plain)


def _is_sound(sample: Sample, prompt: str, promising: bool) -> bool:
    """Whether it has no fault, and promises where it has to."""
    return (_promises(sample) or not promising) and soundness(faults_of_sample(sample, prompt)) == 1


def _promises(sample: Sample) -> bool:
    return bool(sample.document.promises)


def _structure(sample: Sample) -> list[type[Node]]:
    """The tags of an answer, in order."""
    return [type(node) for node in sample.document.nodes if not isinstance(node, Text)]


def _count(prompt: SampledPrompt, scores: Mapping[tuple[str, int], Score]) -> dict[str, int]:
    finished = [sample for sample in prompt.samples if not sample.error]
    return {
        "prompts": 1,
        "samples": len(prompt.samples),
        "failed": len(prompt.samples) - len(finished),
        "unscored": sum((prompt.id, sample.number) not in scores for sample in finished),
        "inexact": sum(not sample.exact for sample in finished),
        "malformed": sum(not sample.well_formed for sample in finished),
    }


def _check(samples: Mapping[tuple[str, int], bool], scores: Mapping[tuple[str, int], Score]) -> None:
    """Every score is of a sample, and most of those that are finished, as `samples` says, have one."""
    finished = {place for place, done in samples.items() if done}
    unknown, missing = scores.keys() - samples.keys(), finished - scores.keys()
    if unknown or 2 * len(missing) > len(finished):
        places, what = (unknown, "scores have no sample") if unknown else (missing, "samples have no score")
        raise InvalidRequestError(
            f"samples and scores do not match: {len(places)} {what}, such as {min(places)}: "
            "score these samples with pasta_async.training.score"
        )
