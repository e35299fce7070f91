"""Ways to decode an answer, compared on the embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from pasta_async.backends.local import LocalBackend
from pasta_async.errors import PastaError
from pasta_async.evals.answers import Answer, read_answers
from pasta_async.evals.methods import (
    METHODS,
    Case,
    ForcedEngine,
    cases_of,
    main,
    measure,
    open_forced_engine,
    summarise,
    time_answer,
)
from pasta_async.lang import parse
from pasta_async.training.sample import Recording
from tests.helpers.answer_runs import promise
from tests.helpers.commands_run import failed, run, write_rows
from tests.pasta_tiny import LOCAL_TINY, PASTA_TINY

ALL = [*METHODS.values()]
NAMES = ("sequential", "pasta", "plan", "skeleton", "apar")

WRITTEN = (
    f"Fruits:\n\n1. {promise('one', 'Apples:' + ' word' * 20, 20)}\n"
    f"2. {promise('two', 'Pears:' + ' word' * 26, 30)}<sync/>\n\nSo it is. "
    f"{promise('three', 'Third' + ' word' * 16, 20)} The end."
)
SHORT = f"A{promise('b', ' word' * 2)}<sync/> c."
PLAIN = "Only one word after the other."
DOCUMENTS = {"many": parse(WRITTEN), "single": parse(PLAIN)}


@asynccontextmanager
async def recorded() -> AsyncGenerator[tuple[ForcedEngine, Recording]]:
    """An embedded engine, which is loaded anew, and what it was asked."""
    async with aclosing(LocalBackend(PASTA_TINY)) as backend:
        recording = Recording(backend)
        async with open_forced_engine(recording, DOCUMENTS) as engine:
            yield engine, recording


@pytest.fixture(scope="module")
def measured() -> list[Answer]:
    """Both documents by every method, in two passes."""

    async def run_methods() -> list[Answer]:
        async with recorded() as (engine, _):
            return await measure(engine, cases_of(DOCUMENTS), ALL, passes=2)

    return asyncio.run(run_methods())


def test_methods_take_turns_and_each_has_its_own_critical_path(measured: list[Answer]):
    names = [*METHODS]
    assert [row.method for row in measured[: len(names)]] == names
    assert [row.method for row in measured[len(names) : 2 * len(names)]] == [*names[1:], names[0]]
    many, single = (
        {row.method: row for row in measured if (row.prompt, row.number) == (prompt, 0)} for prompt in (0, 1)
    )
    tokens = many["sequential"].tokens
    assert all(many[name].tokens > tokens for name in NAMES[1:] if name != "plan")
    assert many["plan"].tokens == pytest.approx(tokens, abs=4)  # each part is encoded alone, and ends
    assert all(row.critical_path <= row.tokens for row in measured)
    # nothing is joined, and a fork costs one token
    assert many["apar"].critical_path < many["pasta"].critical_path
    assert {name: many[name].requests for name in NAMES} == {
        "sequential": 1,
        "pasta": 2 + 3,
        "plan": 3,  # no outline, and no main thread
        "skeleton": 1 + 3,
        "apar": 1 + 3,
    }
    for name in NAMES[1:]:
        assert single[name].critical_path == single["sequential"].critical_path
        assert single[name].requests == 1


def test_no_answer_finds_anothers_kv(measured: list[Answer]):
    rows = [row for row in measured if row.method == "sequential" and row.prompt == 0]
    first, second = (row.prefilled_tokens for row in rows)
    assert first == pytest.approx(second, abs=2), "another number stands in front"
    assert first > 5


async def test_every_method_writes_the_whole_text():
    async with recorded() as (engine, recording):
        tokenizer = engine.forced.model.tokenizer
        for name in NAMES:
            recording.exchanges.clear()
            row = await time_answer(engine, METHODS[name], Case(0, "many", DOCUMENTS["many"]))
            written = [exchange.output for exchange in recording.exchanges]
            assert len(written) == row.requests
            text = "".join(map(tokenizer.decode, written))
            assert text.count("word") == 62, name
            assert text.count("So it is.") == 1, name


async def test_an_answer_that_the_context_cuts_is_no_fast_one() -> None:
    slots = 318  # the document's tokens with its question, without the number in front
    async with (
        aclosing(LocalBackend(PASTA_TINY, slots=slots)) as backend,
        open_forced_engine(backend, DOCUMENTS) as engine,
    ):
        with pytest.raises(PastaError):
            await time_answer(engine, METHODS["pasta"], Case(0, "many", DOCUMENTS["many"]))


async def test_apar_forks_where_its_rules_do_and_its_child_is_told_that_it_is_one():
    async with recorded() as (engine, recording):
        await time_answer(engine, METHODS["apar"], Case(0, "many", DOCUMENTS["many"]))
        main, *children = recording.exchanges
        texts = [engine.forced.model.tokenizer.decode(exchange.output) for exchange in recording.exchanges]
    assert "1. Apples:" in texts[0] and "2. Pears:" in texts[0] and "word" not in texts[0]
    assert [text.count("word") for text in texts[1:]] == [20, 26, 16]
    tags = engine.forced.tags
    for number, child in enumerate(children, 1):
        ids = child.request.ids
        assert ids[-2:] == (tags.promise, tags.open_async)
        assert ids.count(tags.promise) == number  # the forks before it, not what they write
        assert ids[:-1] == (*main.request.ids, *main.output)[: len(ids) - 1]


def played(method: str, prompt: int, seconds: float, path: int) -> Answer:
    return Answer(prompt, method, 0, seconds, 0.5, 100, path, 2, 30, 70)


def test_figures_of_known_rows():
    rows = [played("sequential", 0, 4.0, 100), played("pasta", 0, 1.0, 50)]
    rows += [played("sequential", 1, 9.0, 90), played("pasta", 1, 9.0, 90)]
    base, row = summarise(rows)
    assert (base["times sooner"]["value"], row["times sooner"]["value"]) == pytest.approx((1, 2))
    assert base["pasta is times sooner"]["value"] == pytest.approx(2)
    assert row["by counting"]["value"] == pytest.approx(2**0.5)
    assert row["cached %"] == 30


def test_the_command_compares_on_the_embedded_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record = {"id": "1", "messages": [{"role": "user", "content": "Well?"}], "written": SHORT}
    documents, out = write_rows(tmp_path / "documents.jsonl", [record]), tmp_path / "rows.jsonl"
    options = f"--backend {LOCAL_TINY} --documents {documents} --passes 1 --out {out}"
    run(main, f"{options} --methods pasta --methods skeleton")
    identity, rows = read_answers(out)
    assert identity["methods"] == ["pasta", "skeleton"]
    assert [row.method for row in rows] == ["sequential", "pasta", "skeleton"]
    assert all(row.cached_tokens > 0 for row in rows[1:])
    assert rows[1].fork_seconds
    assert "| skeleton | 1 |" in capsys.readouterr().out
    assert "methods: ['pasta', 'skeleton'] there" in failed(main, options)
