"""Annotation by a language model's likelihood: independence is measured, no annotator is asked.

Structure names the candidates (`structure_marks`). A round that starts at candidate j hides each candidate
from those behind it, and from what main writes between and behind them, until a `<sync/>`. For every j, the
candidates from j on, and main's text, are computed in the very views that the interpreter would have. Their
bits a token, less those in the round that starts right at them, are the cost of hiding. From these costs
`choose` makes the annotation, so that other thresholds need no model.

The model gets these views without tags, since it was not trained on them: the text that is visible, less the
list markers of the candidates that are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pasta_async.backends.options import TorchDType
from pasta_async.lang import Document, Promise, Sync
from pasta_async.progress import progress
from pasta_async.training.data.annotate_structure import is_item
from pasta_async.training.data.corpus import Record, digest
from pasta_async.training.jobs import Journal
from pasta_async.training.likelihood import LanguageModel
from pasta_async.training.views import Mark, insert_tags, rough_tokens, token_spans, with_estimates

_AT_ONCE = 16
"""Answers whose costs are computed together and then written to the journal."""
_Slot = tuple[int, str, int]
"""The text that a target is of: the start of its round, "chunks" or "gaps", and the candidate's number."""
_Part = tuple[_Slot, list[int], list[int]]
"""A text that is measured: its slot, the ids that are visible before it, and its own."""


class Costs(NamedTuple):
    """The costs in a round that starts at candidate j, in bits a token: [j][k - j]; 0 without words."""

    chunks: list[list[float]]
    """The cost of candidate k without those from j to k - 1."""
    gaps: list[list[float]]
    """The cost of main's text before candidate k (the last: behind all) without those from j to k - 1."""


def choose(marks: Sequence[Mark], costs: Costs, taus: Sequence[float], sync_tau: float) -> list[Mark]:
    """The promises and syncs that cost too little to matter.

    From the front, a round goes on until main's text has become dearer than `sync_tau`, or a candidate
    dearer than its tau: there it is joined, and what is promised next is in the next round. A round of one
    candidate is main's own text, since nothing would run beside it.

    `marks` are the candidates, as promises; `taus` say how many bits a token the chunk of each may cost, and
    `sync_tau` what the text behind chunks may cost without a `<sync/>`.
    """
    starts = [0]  # the first candidate of each round
    for number in range(1, len(marks) + 1):
        start = starts[-1]
        joined = costs.gaps[start][number - start] > sync_tau
        dear = number < len(marks) and costs.chunks[start][number - start] > taus[number]
        if joined or dear:
            starts.append(number)
    chosen: list[Mark] = []
    for start, behind in pairwise([*starts, len(marks) + 1]):
        promised = marks[start:behind]
        if len(promised) > 1:
            chosen += promised
            if behind <= len(marks):
                chosen.append(Mark(promised[-1].end, promised[-1].end, Sync()))
    return chosen


class LikelihoodModel(LanguageModel):
    """A model that measures what it costs to hide candidates."""

    def costs(self, answers: Sequence[tuple[Record, Sequence[Mark]]]) -> list[Costs | None]:
        """The costs of some answers' candidates.

        None where the model's context is too short, or its vocabulary cannot write the answer.
        """
        rounds = [self._rounds(record, marks) for record, marks in answers]
        bits = self.bits(
            ((number, slot), context, ids)
            for number, texts in enumerate(rounds)
            for slot, context, ids in texts
        )
        measured = [dict[_Slot, float]() for _ in answers]
        for (number, slot), mean in bits.items():
            measured[number][slot] = mean
        return [
            _costs(measured[number], len(marks)) if rounds[number] else None
            for number, (_, marks) in enumerate(answers)
        ]

    def _rounds(self, record: Record, marks: Sequence[Mark]) -> list[_Part]:
        """The texts that are measured; none where the answer cannot be."""
        spans = token_spans(self, record.document.text, marks)
        if spans is None:
            return []
        ids, places = spans
        chunks = [ids[start:end] for start, end in places]
        # Main's texts before, between and behind the chunks.
        behind = [0, *(end for _, end in places)]
        before = [*(start for start, _ in places), len(ids)]
        gaps = [ids[start:end] for start, end in zip(behind, before, strict=True)]
        # What main writes in front of a chunk that is hidden, and behind all.
        shown = [*map(self._without_marker, gaps[:-1]), gaps[-1]]
        parts: list[_Part] = []
        # The prompt, and the text before the round. A model that has two forms is asked in its plain one.
        joined = self.encode_chat(record.messages, {"pasta": False})
        for start in range(len(gaps)):
            if start:
                joined = joined + gaps[start - 1] + chunks[start - 1]
            visible = joined
            for number in range(start, len(gaps)):
                if number < len(chunks):
                    parts.append(((start, "chunks", number), visible + gaps[number], chunks[number]))
                if self._has_words(shown[number]):
                    parts.append(((start, "gaps", number), visible, shown[number]))
                visible = visible + shown[number]
        fits = all(len(context) + len(ids) <= self.context for _, context, ids in parts)
        return parts if fits else []

    def _without_marker(self, ids: list[int]) -> list[int]:
        """The ids before a hidden chunk, without a last line that has no word."""
        # Go back over the last line, which must have no letter, and over the white space before it.
        texts = [self.decode([token]) for token in ids]
        end = len(ids)
        while end and "\n" not in texts[end - 1]:
            end -= 1
            if any(map(str.isalpha, texts[end])):
                return ids
        while end and texts[end - 1].isspace():
            end -= 1
        return ids[:end]

    def _has_words(self, ids: Sequence[int]) -> bool:
        """True if the ids have a letter; a list marker has none."""
        return any(map(str.isalpha, self.decode(ids)))


def _costs(bits: Mapping[_Slot, float], candidates: int) -> Costs:
    """The costs of every round: its bits a token, less those where nothing is hidden."""

    def cost(start: int, kind: str, number: int) -> float:
        hidden = bits.get((start, kind, number))
        if hidden is None or start == number:
            return 0.0
        return round(hidden - bits[number, kind, number], 4)  # less is due to the order of the sums

    def rows(kind: str, size: int) -> list[list[float]]:
        return [[cost(start, kind, number) for number in range(start, size)] for start in range(size)]

    return Costs(rows("chunks", candidates), rows("gaps", candidates + 1))


def annotate_by_likelihood(
    records: Sequence[Record],
    candidates: Sequence[Sequence[Mark]],
    journal: Journal,
    *,
    folder: str,
    dtype: TorchDType,
    tau: float,
    item_slack: float,
    sync_tau: float,
) -> tuple[list[Document], Counter[str]]:
    """Annotate answers; tags that they have already are ignored.

    Args:
        records: The records with the answers.
        candidates: The tags that structure proposes, for each record.
        journal: The journal of the model's costs, which are computed once for all thresholds.
        folder: Folder of the model that measures.
        dtype: Number format of the model.
        tau: The most that a chunk may cost without its siblings, in bits a token, as all thresholds.
        item_slack: Added to `tau` for an item of a list: each item shows the form of those behind it.
        sync_tau: The most that the text behind chunks may cost without a sync.

    Returns:
        A document for each record, and the totals: answers that were measured or resumed, and those that
        stay plain because they are too long for the model, or its vocabulary cannot write them (unmeasured).

    Raises:
        PastaError: The model cannot be used.
    """
    promises = [[mark for mark in marks if isinstance(mark.tag, Promise)] for marks in candidates]
    keys = [
        digest(record.messages, f"{[(mark.start, mark.end) for mark in marks]}{record.document.text}")
        for record, marks in zip(records, promises, strict=True)
    ]
    with_promises = {
        key: (record, marks) for key, record, marks in zip(keys, records, promises, strict=True) if marks
    }
    # The model measures what the journal does not have yet. Other thresholds need no further measurement.
    costs = {row["key"]: row["costs"] for row in journal.rows}
    new = {key: answer for key, answer in with_promises.items() if key not in costs}
    totals = Counter(measured=len(new), resumed=len(with_promises) - len(new))
    if new:
        costs |= _measured(new, LikelihoodModel(folder, dtype), journal)
    totals["unmeasured"] = sum(costs[key] is None for key in with_promises)
    documents: list[Document] = []
    for key, record, marks in zip(keys, records, promises, strict=True):
        text = record.document.text
        # An item may cost more: what it misses is in part the form that earlier items would have shown.
        taus = [tau + item_slack if is_item(text, mark.start) else tau for mark in marks]
        measured = costs.get(key)
        chosen = choose(marks, Costs(**measured), taus, sync_tau) if measured else []
        documents.append(with_estimates(insert_tags(text, chosen), rough_tokens))
    return documents, totals


def _measured(
    answers: Mapping[str, tuple[Record, Sequence[Mark]]], model: LikelihoodModel, journal: Journal
) -> dict[str, Any]:
    """The costs of answers by their key, as the journal keeps them."""
    measured: dict[str, Any] = {}
    keys = list(answers)
    with progress(len(keys), "answers") as advance:
        for start in range(0, len(keys), _AT_ONCE):
            together = keys[start : start + _AT_ONCE]
            for key, costs in zip(together, model.costs([answers[key] for key in together]), strict=True):
                measured[key] = costs and costs._asdict()
                journal.append({"key": key, "costs": measured[key]})
            advance(len(together))
    return measured
