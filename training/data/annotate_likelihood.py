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

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pasta_async.lang import Document, Promise, Sync
from pasta_async.progress import progress
from pasta_async.training.data.annotate_structure import is_item
from pasta_async.training.data.corpus import Record, digest
from pasta_async.training.jobs import Journal
from pasta_async.training.likelihood import LanguageModel
from pasta_async.training.views import (
    CountTokens,
    Mark,
    Trie,
    encode_views,
    insert_tags,
    recount,
)

_AT_ONCE = 16
"""Answers whose costs are computed together and then written to the journal."""
_Slot = tuple[int, str, int]
"""The text that a target is of: the start of its round, "chunks" or "gaps", and the candidate's number."""


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
        """The costs of some answers' candidates; None where the model's context is too short."""
        # Trees with the number of their answer and the slot of each target. The rounds of an answer share a
        # tree, and so what they have in common, until that is half as large as a row.
        trees: list[tuple[int, Trie, list[_Slot]]] = []
        for number, (record, marks) in enumerate(answers):
            for start in range(len(marks) + 1):
                if not trees or trees[-1][0] != number or len(trees[-1][1]) > self.row_tokens // 2:
                    trees.append((number, Trie(), []))
                trees[-1][2].extend(self._add_round(trees[-1][1], record, marks, start))
        too_long = {number for number, tree, _ in trees if max(tree.depths()) >= self.context}
        fitting = [item for item in trees if item[0] not in too_long]
        bits = [dict[_Slot, float]() for _ in answers]
        losses = self.bits([tree for _, tree, _ in fitting])
        for (number, _, slots), losses_of_tree in zip(fitting, losses, strict=True):
            bits[number] |= _means(slots, losses_of_tree)
        return [
            None if number in too_long else _costs(bits[number], len(marks))
            for number, (_, marks) in enumerate(answers)
        ]

    def _add_round(self, tree: Trie, record: Record, marks: Sequence[Mark], start: int) -> Iterator[_Slot]:
        """Add the views of the round that starts at a candidate; yields the slot of each new target."""
        # A sync in front of the round joins all candidates before it. Only the threads of the round, and main
        # behind the sync, have targets.
        root = tree.extend(-1, self.prompt(record.messages))
        joined = [Mark(marks[start - 1].end, marks[start - 1].end, Sync())] if start else []
        document = insert_tags(record.document.text, [*marks[:start], *joined, *marks[start:]])
        views = encode_views(self, recount(document, self.count))
        *_, main = (number for number, view in enumerate(views) if view.thread == 0)
        for number, (thread, context, target) in enumerate(views):
            node = tree.extend(root, self._visible(context))
            if thread > start:
                tree.extend(node, target[:-1], target=True)  # less `</async>`
                yield from ((start, "chunks", thread - 1) for _ in target[:-1])
            elif number == main:
                for place, gap in enumerate(self._gaps(target), start):
                    has_words = self._has_words(gap)
                    if has_words:
                        yield from ((start, "gaps", place) for _ in gap)
                    node = tree.extend(node, gap, target=has_words)

    def _visible(self, ids: Sequence[int]) -> list[int]:
        """The ids of a context without its tags, and without the list markers in front of hidden chunks."""
        visible: list[int] = []
        run: list[int] = []  # text since the last promise
        in_promise = False
        for token, following in zip(ids, [*ids[1:], self.end], strict=False):
            if token == self.tag_ids.end:  # a chunk that is hidden goes with its list marker
                in_promise = False
                visible += run if following == self.tag_ids.open_async else self._without_marker(run)
                run = []
            elif token == self.tag_ids.promise:
                in_promise = True
            elif not in_promise and token not in self.tag_ids:
                run.append(token)
        return visible + run

    def _gaps(self, target: Sequence[int]) -> Iterator[list[int]]:
        """Main's texts before, between and behind its promises, less end-of-text."""
        gap: list[int] = []
        in_promise = False
        for token in target[:-1]:
            in_promise = in_promise or token == self.tag_ids.promise
            if not in_promise:
                gap.append(token)
            elif token == self.tag_ids.end:
                yield self._without_marker(gap)
                gap = []
                in_promise = False
        yield gap

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


def _means(slots: Iterable[_Slot], losses: Iterable[float]) -> dict[_Slot, float]:
    by_slot: defaultdict[_Slot, list[float]] = defaultdict(list)
    for slot, bits in zip(slots, losses, strict=True):
        by_slot[slot].append(bits)
    return {slot: sum(bits) / len(bits) for slot, bits in by_slot.items()}


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


class Thresholds(NamedTuple):
    """The most that hiding may cost, in bits a token."""

    tau: float
    """The cost of a chunk without its siblings."""
    form: float
    """Added to `tau` for an item of a list: each item shows the form of those behind it."""
    sync_tau: float
    """The cost of the text behind chunks, without a sync."""


def annotate_by_likelihood(
    records: Sequence[Record],
    candidates: Sequence[Sequence[Mark]],
    folder: str,
    journal: Journal,
    thresholds: Thresholds,
    count: CountTokens,
) -> tuple[list[Document], Counter[str]]:
    """Annotate answers; tags that they have already are ignored.

    Args:
        records: The records with the answers.
        candidates: The tags that structure proposes, for each record.
        folder: Folder of the model that measures.
        journal: The journal of the model's costs, which are computed once for all thresholds.
        thresholds: The most that hiding may cost.
        count: Counts tokens, for estimates.

    Returns:
        A document for each record, and the totals: answers that were measured or resumed, and those that
        stay plain because they are too_long for the model.

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
    costs = {row["key"]: row["costs"] for row in journal.rows}
    new = {key: answer for key, answer in with_promises.items() if key not in costs}
    totals = Counter(measured=len(new), resumed=len(with_promises) - len(new))
    if new:
        costs |= _measured(new, folder, journal)
    totals["too_long"] = sum(costs[key] is None for key in with_promises)
    documents: list[Document] = []
    for key, record, marks in zip(keys, records, promises, strict=True):
        text = record.document.text
        item_tau = thresholds.tau + thresholds.form
        taus = [item_tau if is_item(text, mark) else thresholds.tau for mark in marks]
        measured = costs.get(key)
        chosen = choose(marks, Costs(**measured), taus, thresholds.sync_tau) if measured else []
        documents.append(recount(insert_tags(text, chosen), count))
    return documents, totals


def _measured(
    answers: Mapping[str, tuple[Record, Sequence[Mark]]], folder: str, journal: Journal
) -> dict[str, Any]:
    """The costs of answers by their key, as the journal keeps them."""
    model = LikelihoodModel(folder)
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
