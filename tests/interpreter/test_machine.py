"""The machine alone, fed in any order: what an answer comes to does not depend on who was fed when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_async import Generation, Model, Piece, Sampling
from pasta_async.interpreter.machine import Machine
from pasta_async.lang import Document, parse
from pasta_async.observers import AnswerStart
from pasta_async.testing import word_tokenizer
from pasta_async.tokenizer import Tokenizer
from tests.interpreter.support import RICH, ROOMY, documents, unrolled
from tests.interpreter.vocabularies import tokenizer

Choose = Callable[[int], int]
"""Chooses, of n things that could happen, the one that does."""
Outcome = dict[tuple[int, int], tuple[int, ...]]
"""Context of each request, by thread and number."""


def start(max_tokens: int = 1000) -> AnswerStart:
    return AnswerStart(answer="a", prompt="Why?", sampling=Sampling(max_tokens=max_tokens), limits=ROOMY)


class Writer:
    """A model that writes a document, whoever asks when: tags are ids, and the contexts are the views."""

    def __init__(self, document: Document, words: Tokenizer) -> None:
        self.tokenizer = words
        self.main: deque[deque[int]] = deque()
        """Main's ids, stretch by stretch."""
        self.chunks: dict[int, deque[int]] = {}
        for thread, _, output in unrolled(document, self.tokenizer):
            if thread:
                self.chunks[thread] = deque(output)
            else:
                self.main.append(deque(output))

    def next(self, thread: int) -> Piece:
        ids = self.chunks[thread] if thread else self.main[0]
        return Piece((ids.popleft(),)) if ids else Piece((), "stop")


def model(words: Tokenizer) -> Model:
    return Model("table", words, 10**7, words.vocab_size, words.end_ids, words.tags, True)


def run(writer: Writer, choose: Choose) -> tuple[Generation, Outcome]:
    """Play an answer; `choose` says which of n things that could happen next does."""
    machine = Machine(model(writer.tokenizer), writer.tokenizer.tags, start(10**7))
    contexts: Outcome = {}
    asking: set[int] = set()
    started = [0]
    while True:
        able = [number for number in started if machine.wants(number)]
        ready = machine.main.state == "joining" and not machine.open_threads
        if not able and not ready:
            return machine.finish(None, 0.0), contexts
        at = choose(len(able) + ready)
        if at == len(able):
            machine.join(0.0)
            writer.main.popleft()
            continue
        number = able[at]
        if number not in asking:
            asking.add(number)
            contexts[number, len(machine.threads[number].requests)] = machine.context(number)
            machine.begin_request(number, 0, 0.0)
        piece = writer.next(number)
        if machine.feed(number, piece, 0.0) or piece.finish_reason:
            asking.discard(number)
        started += machine.spawned
        machine.spawned.clear()


def first(_: int) -> int:
    return 0


def last(count: int) -> int:
    return count - 1


def comparable(outcome: tuple[Generation, Outcome]) -> object:
    generation, contexts = outcome
    return (
        generation.document,
        generation.text,
        generation.critical_path,
        generation.usage.completion_tokens,
        [str(diagnostic) for diagnostic in generation.diagnostics],
        [
            (thread.text, thread.tokens, thread.finish_reason, thread.closed_by)
            for thread in generation.threads
        ],
        contexts,
    )


@given(document=documents(), name=st.sampled_from(["words", "bytes"]), data=st.data())
@settings(max_examples=25)
def test_the_outcome_does_not_depend_on_the_interleaving(
    document: Document, name: str, data: st.DataObject
) -> None:
    def choose(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    outcome = run(Writer(document, tokenizer(name)), choose)
    assert outcome[0].document == document
    assert outcome[0].text == document.text
    assert comparable(outcome) == comparable(run(Writer(document, tokenizer(name)), first))
    assert comparable(outcome) == comparable(run(Writer(document, tokenizer(name)), last))


def test_the_critical_path_is_the_longest_chain_of_each_round_in_tokens() -> None:
    writer = Writer(parse(RICH), word_tokenizer([RICH]))
    mains = [len(pieces) for pieces in writer.main]
    chunks = {number: len(pieces) for number, pieces in writer.chunks.items()}
    generation, _ = run(writer, first)
    first_round = max(mains[0], 6 + 5 + chunks[1], 6 + 5 + 1 + 5 + chunks[2])
    second_round = max(mains[1], 9 + 5 + chunks[3], 9 + 5 + 5 + chunks[4])
    third_round = max(mains[2], 5 + 5 + chunks[5])
    assert generation.critical_path == first_round + second_round + third_round


def test_a_stop_that_comes_behind_its_token_is_not_the_end() -> None:
    """Some backends say why a request ended in a last piece that holds no token."""
    words = tokenizer("words")
    assert words.tags is not None
    machine = Machine(model(words), words.tags, start())
    machine.begin_request(0, 0, 0.0)
    machine.feed(0, Piece((words.tags.sync,)), 0.0)
    machine.feed(0, Piece((), "stop"), 0.0)
    assert machine.wants(0)  # nothing was open, so main goes on
    machine.begin_request(0, 0, 0.0)
    machine.feed(0, Piece((), "stop"), 0.0)
    assert not machine.wants(0)
