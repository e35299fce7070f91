"""Answers under load, on a scripted backend that takes time for tokens, and on the embedded engine."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import run
from recorder import Recorder

from pasta_async.evals.answers import Answer
from pasta_async.evals.load import Block, LoadSettings, drive, main, measure, summarise
from pasta_async.evals.methods import METHODS, WARM_UP, Engine, cases_of, open_engine
from pasta_async.jobs import Journal
from pasta_async.lang import Document, parse
from pasta_async.testing import ScriptedBackend, VirtualClock, word_tokenizer
from tests.interpreter.support import promise
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from pasta_async.evals.load import Mode

LATENCY = 0.01
NAMES = ["sequential", "pasta"]
WRITTEN = (
    f"First:{promise('one', ' word' * 30, 30)} Second:{promise('two', ' word' * 40, 40)}<sync/> So it is."
)
DOCUMENTS = {"many": parse(WRITTEN), "single": parse("Only one word after the other.")}
CASES = cases_of(DOCUMENTS)


def settings_of(methods: Sequence[str], **changed: Any) -> LoadSettings:
    return LoadSettings(backend="scripted", documents=Path("none"), methods=tuple(methods), **changed)


@asynccontextmanager
async def opened(documents: Mapping[str, Document] = DOCUMENTS) -> AsyncGenerator[tuple[Engine, Recorder]]:
    """An engine that takes time for each token and for nothing else, and what it was asked."""
    clock, known = VirtualClock(), {WARM_UP.question: WARM_UP.document, **documents}
    tokenizer = word_tokenizer(document.text for document in known.values())

    def script(prompt: str) -> Document:
        return known[re.sub(r"^\[\d+ \d+\] ", "", prompt)]

    backend = Recorder(ScriptedBackend(script, tokenizer=tokenizer, clock=clock, latency=LATENCY))
    async with open_engine(backend, documents, clock) as engine:
        yield engine, backend


async def test_a_closed_loop_keeps_so_many_answers_under_way():
    async with opened() as (engine, backend):
        single = await drive(engine, METHODS["sequential"], CASES[:1] * 6, mode="closed", level=1)
        three = await drive(engine, METHODS["sequential"], CASES[:1] * 6, mode="closed", level=3)
    assert backend.max_open == 3
    assert single.seconds == pytest.approx(3 * three.seconds, rel=0.02)
    tokens = single.answers[0].tokens
    assert {answer.tokens for answer in single.answers} == {tokens}
    for answer in (*single.answers, *three.answers):
        assert answer.seconds == pytest.approx(tokens * LATENCY, rel=0.02)
    assert three.arrived == pytest.approx([0] * 3 + [tokens * LATENCY] * 3, rel=0.02)


async def test_an_open_loop_is_a_poisson_process_that_is_the_same_for_each_method():
    async with opened() as (engine, _):
        blocks = [
            await drive(engine, METHODS[name], CASES[:1] * 400, mode="open", level=20, number=number)
            for name, number in (("sequential", 1), ("pasta", 1), ("sequential", 2))
        ]
    first, again, other = (block.arrived for block in blocks)
    assert first == pytest.approx(again)
    assert first != pytest.approx(other)
    gaps = [b - a for a, b in pairwise(first)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.2)
    spread = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert spread == pytest.approx(mean**2, rel=0.4)  # of an exponential distribution


async def test_blocks_are_kept_and_not_taken_again(tmp_path: Path):
    file = tmp_path / "load.jsonl"
    settings = settings_of(NAMES, at_once=(2,), rates=(5.0,), answers=4, rounds=2)
    async with opened() as (engine, backend):
        with Journal(file, {"benchmark": "load"}) as journal:
            blocks = await measure(engine, CASES, settings, journal)
        assert [(block.round, block.mode, block.method) for block in blocks] == [
            (0, "closed", "sequential"),
            (0, "closed", "pasta"),
            (0, "open", "pasta"),
            (0, "open", "sequential"),
            (1, "closed", "pasta"),
            (1, "closed", "sequential"),
            (1, "open", "sequential"),
            (1, "open", "pasta"),
        ]
        count = len(backend.requests)
        with Journal(file, {"benchmark": "load"}) as journal:
            assert await measure(engine, CASES, settings, journal) == blocks
        assert len({request.answer for request in backend.requests[count:]}) == len(NAMES), "they warm up"
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [Block(**row) for row in rows] == blocks
    assert rows == json.loads(json.dumps([asdict(block) for block in blocks]))
    row = next(row for row in summarise(blocks) if row["method"] == "pasta")
    assert row["times sooner than in sequence"]["value"] > 1


async def test_rounds_go_on_with_the_next_documents_and_the_same_answers_are_compared():
    documents = {f"{n}": parse(WRITTEN) for n in range(10)}
    async with opened(documents) as (engine, _):
        settings = settings_of(NAMES, at_once=(1,), answers=5, rounds=3)
        blocks = await measure(engine, cases_of(documents), settings)
    first, again = ([[a.prompt for a in b.answers] for b in blocks if b.method == name] for name in NAMES)
    assert first == again == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
    sooner = summarise(blocks)[1]["times sooner than in sequence"]
    assert 1 < sooner["low"] <= sooner["value"] <= sooner["high"], "ten prompts"


def block(method: str, level: float, *seconds: float, mode: Mode = "closed", over: float = 10) -> Block:
    timed = (
        Answer(n, method, seconds=duration, first_token=0.1, tokens=50) for n, duration in enumerate(seconds)
    )
    return Block(mode, level, method, over, (0.0,) * len(seconds), tuple(timed))


def test_figures_of_known_blocks():
    blocks = [
        *(block("sequential", 1, 2.0, 4.0), block("pasta", 1, 1.0, 2.0)),
        *(block("sequential", 16, 8.0, 8.0), block("pasta", 16, 10.0, 10.0, over=20)),
        *(block("sequential", 4, 4.0, 6.0), block("pasta", 4, 3.0, 5.0)),
    ]
    rows = summarise(blocks)
    assert [(row["load"], row["method"]) for row in rows] == [
        (f"{level} at once", method) for level in (1, 4, 16) for method in ("sequential", "pasta")
    ]
    assert (rows[0]["p50 s"], rows[0]["p99 s"], rows[0]["answers a second"]) == pytest.approx(
        (3.0, 3.98, 0.2)
    )
    ratios = [row["times sooner than in sequence"]["value"] for row in rows]
    assert ratios == pytest.approx([1, 2, 1, 1.265, 1, 0.8], abs=1e-3)


def test_the_command_loads_the_embedded_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    documents, out = tmp_path / "documents.jsonl", tmp_path / "rows.jsonl"
    record = {
        "id": "1",
        "messages": [{"role": "user", "content": "Well?"}],
        "written": f"A{promise('b', ' word' * 2)} c.",
    }
    documents.write_text(json.dumps(record) + "\n")
    options = "--rounds 1 --at-once 2 --rates 50 --answers 4 --methods sequential --methods auto"
    run(main, f"--backend {LOCAL_TINY} --documents {documents} {options} --out {out}")
    head, _, *rows = map(json.loads, out.read_text().splitlines())
    assert head["benchmark"] == "load"
    assert [(row["mode"], row["level"], row["method"], len(row["answers"])) for row in rows] == [
        (mode, level, method, 4)
        for mode, level, methods in (
            ("closed", 2, ("sequential", "auto")),
            ("open", 50, ("auto", "sequential")),
        )
        for method in methods
    ]
    assert "| 2 at once | auto | 4 |" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["--at-once 0", "--rates -1", "--rates inf", "--sample 0"])
def test_numbers_that_make_no_sense_are_refused_before_anything_starts(arguments: str):
    with pytest.raises(SystemExit) as ended:
        main(f"--backend {LOCAL_TINY} --documents none {arguments}".split())
    assert ended.value.code == 2
