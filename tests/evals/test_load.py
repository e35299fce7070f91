"""Answers under load, on a scripted backend that takes time for tokens, and on the embedded engine."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pasta_async.evals.answers import Answer, of_method, read_answers
from pasta_async.evals.load import Load, LoadSettings, main, measure, summarise, write_under_load
from pasta_async.evals.methods import METHODS, WARM_UP, ForcedEngine, MethodName, cases_of, open_forced_engine
from pasta_async.lang import Document, parse
from pasta_async.testing import ScriptedBackend, VirtualClock, word_tokenizer
from pasta_async.training.jobs import Journal
from tests.helpers.answer_runs import promise
from tests.helpers.commands_run import failed, run, write_rows
from tests.pasta_tiny import LOCAL_TINY

LATENCY = 0.01
NAMES: tuple[MethodName, ...] = ("sequential", "pasta")
WRITTEN = (
    f"First:{promise('one', ' word' * 30, 30)} Second:{promise('two', ' word' * 40, 40)}<sync/> So it is."
)
DOCUMENTS = {"many": parse(WRITTEN), "single": parse("Only one word after the other.")}
CASES = cases_of(DOCUMENTS)


def settings_of(**changed: Any) -> LoadSettings:
    return LoadSettings(backend="scripted", documents=Path("none"), methods=NAMES, **changed)


@asynccontextmanager
async def opened(
    documents: Mapping[str, Document] = DOCUMENTS,
) -> AsyncGenerator[tuple[ForcedEngine, ScriptedBackend]]:
    """An engine that takes time for each token and for nothing else, and what it was asked."""
    clock, known = VirtualClock(), {WARM_UP.question: WARM_UP.document, **documents}
    tokenizer = word_tokenizer(document.text for document in known.values())

    def script(prompt: str) -> Document:
        return known[re.sub(r"^\[\d+ \d+\] ", "", prompt)]

    backend = ScriptedBackend(script, tokenizer=tokenizer, clock=clock, latency=LATENCY)
    async with open_forced_engine(backend, documents, clock) as engine:
        yield engine, backend


async def test_a_closed_loop_keeps_so_many_answers_under_way():
    async with opened() as (engine, backend):
        single = await write_under_load(engine, METHODS["sequential"], CASES[:1] * 6, Load(1))
        three = await write_under_load(engine, METHODS["sequential"], CASES[:1] * 6, Load(3))
    assert backend.max_open == 3
    tokens = single[0].tokens
    assert {answer.tokens for answer in single} == {tokens}
    for answer in (*single, *three):
        assert answer.seconds == pytest.approx(tokens * LATENCY, rel=0.02)
    assert [answer.arrived for answer in three] == pytest.approx([0] * 3 + [tokens * LATENCY] * 3, rel=0.02)
    rates = [row["answers a second"] for row in summarise([*single, *three])]
    assert rates[1] == pytest.approx(3 * rates[0], rel=0.02)


async def test_an_open_loop_is_a_poisson_process_that_is_the_same_for_each_method():
    async with opened() as (engine, _):
        first, again, other = [
            [
                answer.arrived
                for answer in await write_under_load(
                    engine, METHODS[name], CASES[1:] * 400, Load(0, 20), number
                )
            ]
            for name, number in (("sequential", 1), ("pasta", 1), ("sequential", 2))
        ]
    assert first == pytest.approx(again)
    assert first != pytest.approx(other)
    gaps = [b - a for a, b in pairwise(first)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.2)
    spread = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert spread == pytest.approx(mean**2, rel=0.4)  # of an exponential distribution


async def test_answers_are_kept_and_not_written_again(tmp_path: Path):
    file = tmp_path / "load.jsonl"
    settings = settings_of(at_once=(2,), rates=(5.0,), answers=4, rounds=2)
    async with opened() as (engine, backend):
        with Journal(file, {"benchmark": "load"}) as journal:
            answers = await measure(engine, CASES, settings, journal)
        assert [(answer.number, answer.load, answer.method) for answer in answers[::4]] == [
            (0, "2 at once", "sequential"),
            (0, "2 at once", "pasta"),
            (0, "5 a second", "pasta"),
            (0, "5 a second", "sequential"),
            (1, "2 at once", "pasta"),
            (1, "2 at once", "sequential"),
            (1, "5 a second", "sequential"),
            (1, "5 a second", "pasta"),
        ]
        count = len(backend.requests)
        with Journal(file, {"benchmark": "load"}) as journal:
            assert await measure(engine, CASES, settings, journal) == answers
        assert len({request.answer for request in backend.requests[count:]}) == len(NAMES), "they warm up"
        # Half of the last block is lost: it is written again, once.
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-2]))
        for written in (4, 0):
            count = len(backend.requests)
            with Journal(file, {"benchmark": "load"}) as journal:
                assert len(await measure(engine, CASES, settings, journal)) == len(answers)
            asked = {request.answer for request in backend.requests[count:]}
            assert len(asked) == len(NAMES) + written
    row = next(row for row in summarise(answers) if row["method"] == "pasta")
    assert row["times sooner than in sequence"]["value"] > 1


async def test_rounds_go_on_with_the_next_documents_and_the_same_answers_are_compared():
    documents = {f"{n}": parse(WRITTEN) for n in range(10)}
    async with opened(documents) as (engine, _):
        settings = settings_of(at_once=(1,), answers=5, rounds=3)
        answers = await measure(engine, cases_of(documents), settings)
    for name in NAMES:
        order = [(answer.number, answer.prompt) for answer in of_method(answers, name)]
        assert order == [(0, n) for n in range(5)] + [(1, n) for n in range(5, 10)] + [
            (2, n) for n in range(5)
        ]
    sooner = summarise(answers)[1]["times sooner than in sequence"]
    assert sooner["value"] > 1
    assert sooner["low"] is None, "three rounds"


def answered(method: str, load: str, *seconds: float) -> list[Answer]:
    return [Answer(n, method, seconds=duration, load=load) for n, duration in enumerate(seconds)]


def test_figures_of_known_answers():
    answers = [
        *(*answered("sequential", "1 at once", 2.0, 4.0), *answered("pasta", "1 at once", 1.0, 2.0)),
        *(*answered("pasta", "16 at once", 10.0, 10.0), *answered("sequential", "16 at once", 8.0, 8.0)),
    ]
    rows = summarise(answers)
    assert [(row["load"], row["method"]) for row in rows] == [
        (f"{level} at once", method) for level in (1, 16) for method in ("sequential", "pasta")
    ]
    assert (rows[0]["p50 s"], rows[0]["p99 s"], rows[0]["answers a second"]) == pytest.approx(
        (3.0, 3.98, 0.5)
    )
    ratios = [row["times sooner than in sequence"]["value"] for row in rows]
    assert ratios == pytest.approx([1, 2, 1, 0.8])


def test_the_command_loads_the_embedded_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record = {
        "id": "1",
        "messages": [{"role": "user", "content": "Well?"}],
        "written": f"A{promise('b', ' word' * 2)} c.",
    }
    documents, out = write_rows(tmp_path / "documents.jsonl", [record]), tmp_path / "rows.jsonl"
    methods = "--methods sequential --methods auto --methods auto"  # one that is named twice is written once
    options = f"--rounds 1 --at-once 2 --at-once 2 --rates 50 --answers 4 {methods}"
    run(main, f"--backend {LOCAL_TINY} --documents {documents} {options} --out {out}")
    identity, answers = read_answers(out)
    assert identity["benchmark"] == "load"
    assert len(answers) == 2 * 2 * 4, "a load that is named twice is measured once"
    assert {(answer.load, answer.method) for answer in answers} == {
        (load, method) for load in ("2 at once", "50 a second") for method in ("sequential", "auto")
    }
    assert "| 2 at once | auto | 4 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", ["--at-once 0", "--rates -1", "--rates inf", "--sample 0", "--methods magic"]
)
def test_numbers_that_make_no_sense_are_refused_before_anything_starts(arguments: str):
    option, _ = arguments.split()
    assert option in failed(main, f"--backend {LOCAL_TINY} --documents none {arguments}")
