from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run
from recorder import Recorder

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer
from pasta_async.evals.documents import read_documents
from pasta_async.evals.methods.__main__ import main, measure, methods_for, summarise
from pasta_async.evals.methods.strategies import METHODS
from pasta_async.evals.methods.track import rounds
from pasta_async.evals.simulator import EngineModel, SimulatedBackend
from pasta_async.jobs import Journal
from pasta_async.lang import parse
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from pasta_async import Backend

LATENCY = 0.01
ANYWHERE = [method for method in METHODS.values() if not (method.needs_server or method.optional)]


def chunk(topic: str, head: str, words: int) -> str:
    return f'<promise topic="{topic}" tokens="{words}"/><async>{head}{" word" * words}</async>'


WRITTEN = (
    f"Fruits:\n\n1. {chunk('one', 'Apples:', 30)}\n2. {chunk('two', 'Pears:', 40)}<sync/>\n\nSo it is. "
    f"{chunk('three', 'Third', 25)} The end."
)
SHORT = f"A{chunk('b', '', 2)}<sync/> c."
PLAIN = "Only one word after the other."
DOCUMENTS = {"many": parse(WRITTEN), "single": parse(PLAIN)}


class World:
    """Simulated engines whose steps take the same time whatever is in them, and what they were asked."""

    def __init__(self) -> None:
        self.made: list[Recorder] = []

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Backend]:
        self.made.append(Recorder(SimulatedBackend(EngineModel(step=LATENCY))))
        yield self.made[-1]


async def test_every_method_takes_the_time_of_its_critical_path():
    rows = await measure(World().opened, DOCUMENTS, ANYWHERE, passes=1)
    assert [row.method for row in rows[: len(ANYWHERE)]] == list(dict.fromkeys(m.name for m in ANYWHERE))
    for row in rows:
        waits = row.requests * LATENCY  # a request may wait for the step that is under way
        assert row.critical_path * LATENCY == pytest.approx(row.seconds - waits / 2, abs=waits / 2 + 1e-9)
        assert row.first_token == pytest.approx(LATENCY)
        assert row.tokens >= row.critical_path


async def test_what_each_method_has_to_wait_for():
    rows = await measure(World().opened, DOCUMENTS, ANYWHERE, passes=1)
    many, single = ({row.method: row for row in rows if row.prompt == prompt} for prompt in (0, 1))
    tokens = many["sequential"].tokens
    assert all(row.tokens > tokens for name, row in many.items() if name != "sequential")
    # nothing is joined, and a fork costs one token
    assert many["apar"].critical_path < many["pasta"].critical_path
    # main waits at the barrier until its plan is written before any thread begins
    assert many["pasta"].critical_path < many["plan-then-fork"].critical_path
    assert {name: row.requests for name, row in many.items()} == {
        "sequential": 1,
        "pasta": 2 + 3,
        "skeleton": 1 + 3,
        "apar": 1 + 3,
        "plan-then-fork": 2 + 3,
    }
    for name in ("pasta", "skeleton", "apar", "plan-then-fork"):
        assert single[name].critical_path == single["sequential"].critical_path
        assert single[name].requests == 1


async def test_every_method_writes_the_whole_text():
    for method in ANYWHERE:
        world = World()
        (row,) = await measure(world.opened, {"many": DOCUMENTS["many"]}, [method], passes=1)
        (backend,) = world.made
        own = backend.requests[-row.requests :]  # behind what warms up
        text = "".join([await backend.detokenize(request.extra["forced"]) for request in own])
        assert text.count("word") == 95, method.name
        assert text.count("So it is.") == 1, method.name
        assert not backend.open


async def test_apar_forks_where_its_rules_do_and_its_child_is_told_that_it_is_one():
    world = World()
    (row,) = await measure(world.opened, {"many": DOCUMENTS["many"]}, [METHODS["apar"]], passes=1)
    (backend,) = world.made
    info = await backend.connect()
    assert info.tags
    main, *children = backend.requests[-row.requests :]
    written = [await backend.detokenize(request.extra["forced"]) for request in (main, *children)]
    assert "1. Apples:" in written[0] and "2. Pears:" in written[0] and "word" not in written[0]
    assert [text.count("word") for text in written[1:]] == [30, 40, 25]
    for number, child in enumerate(children, 1):
        assert child.ids[-2:] == (info.tags.promise, info.tags.open_async)
        assert child.ids.count(info.tags.promise) == number  # the forks before it, not what they write
        assert child.ids[:-1] == (*main.ids, *main.extra["forced"])[: len(child.ids) - 1]
        assert child.extra["forced"][-1] == info.end_ids[0]


async def test_no_answer_finds_anothers_kv():
    world = World()
    rows = await measure(world.opened, DOCUMENTS, ANYWHERE, passes=2)
    first, again = ({(r.prompt, r.method): r for r in rows if r.number == number} for number in (0, 1))
    assert {key: row.prefilled_tokens for key, row in first.items()} == {
        key: row.prefilled_tokens for key, row in again.items()
    }
    assert first[0, "sequential"].prefilled_tokens > 1


async def test_a_run_that_broke_off_goes_on(tmp_path: Path):
    world, file = World(), tmp_path / "rows.jsonl"
    with Journal(file, {"benchmark": "methods"}) as journal:
        whole = await measure(world.opened, DOCUMENTS, ANYWHERE, passes=1, journal=journal)
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + len(whole) == 1 + 2 * len(ANYWHERE)
    file.write_text("\n".join(lines[:5]) + '\n{"prompt": 0, "meth')

    world = World()
    with Journal(file, {"benchmark": "methods"}) as journal:
        rows = await measure(world.opened, DOCUMENTS, ANYWHERE, passes=1, journal=journal)
    assert [(row.prompt, row.method) for row in rows] == [(row.prompt, row.method) for row in whole]
    assert [json.loads(line) for line in file.read_text().splitlines()[1:5]] == list(
        map(json.loads, lines[1:5])
    )
    answers = {request.answer for backend in world.made for request in backend.requests}
    assert len(answers) == len(ANYWHERE) + len(whole) - 4


def test_the_rounds_of_a_document_are_its_visible_text():
    for document in DOCUMENTS.values():
        assert "".join(part.text for one in rounds(document) for part in one) == document.text
    first, second = rounds(DOCUMENTS["many"])
    assert [part.topic for part in first] == ["one", "two"]
    assert [part.topic for part in second] == ["three"]
    assert second[0].text.endswith("The end.")


def played(method: str, prompt: int, seconds: float, path: int) -> Answer:
    return Answer(prompt, method, 0, seconds, 0.5, 100, path, 2, 30, 70)


def test_figures_of_known_rows():
    rows = [played("sequential", 0, 4.0, 100), played("pasta", 0, 1.0, 50)]
    rows += [played("sequential", 1, 9.0, 90), played("pasta", 1, 9.0, 90)]
    base, row = summarise(rows)
    assert base["speed-up"] == "1.00"
    assert row["speed-up"] == "2.00"
    assert base["against pasta"] == "0.50"
    assert row["theoretical"] == pytest.approx(2**0.5)
    assert row["cached"] == "30%"


def test_the_command_compares_on_the_embedded_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    documents, out = tmp_path / "documents.jsonl", tmp_path / "rows.jsonl"
    record = {"id": "1", "messages": [{"role": "user", "content": "Well?"}], "written": SHORT}
    documents.write_text(json.dumps(record) + "\n")
    command = [
        "--backend",
        LOCAL_TINY,
        "--documents",
        str(documents),
        "--passes",
        "1",
        "--out",
        str(out),
    ]
    several = [part for name in ("pasta", "plan-then-fork") for part in ("--methods", name)]
    run(main, "", *command, *several)
    table = capsys.readouterr().out
    head, environment, *rows = map(json.loads, out.read_text().splitlines())
    assert (
        head["methods"]
        == [row["method"] for row in rows]
        == [
            "sequential",
            "pasta",
            "plan-then-fork",
        ]
    )
    assert environment["environment"]["cores"] >= 1
    assert all(row["cached_tokens"] > 0 for row in rows[1:3])
    assert "| plan-then-fork | 1 |" in table
    assert refused(main, "", *command).startswith("InvalidRequestError")  # other methods are in that file


@pytest.mark.parametrize(
    ("name", "backend"),
    [("by hand", "local:"), ("by hand", "simulated:e.json"), ("?", "local:")],
)
def test_methods_that_cannot_run_somewhere_are_refused(name: str, backend: str):
    with pytest.raises(InvalidRequestError):
        methods_for([name], backend)


@pytest.mark.parametrize("backend", ["http://127.0.0.1:30000", "sglang:model"])
def test_a_server_can_run_every_method(backend: str):
    assert {method.name for method in methods_for([*METHODS], backend)} == {*METHODS}


async def test_what_warms_up_is_none_of_the_answers():
    world = World()
    rows = await measure(world.opened, DOCUMENTS, ANYWHERE, passes=1)
    (backend,) = world.made
    questions = [await backend.detokenize(request.ids) for request in backend.requests if not request.thread]
    counted = sum(row.requests for row in rows)
    assert counted < len(backend.requests)
    assert not any("many" in text or "single" in text for text in questions[: len(ANYWHERE)])


def test_the_documents_of_a_sample_are_of_every_speedup(tmp_path: Path):
    records = [
        {
            "id": f"{n}",
            "messages": [{"role": "user", "content": f"{n}?"}],
            "written": WRITTEN if n % 2 else PLAIN,
        }
        for n in range(20)
    ]
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = read_documents(path, 4)
    assert sorted(bool(document.promises) for document in found.values()) == [False, False, True, True]
    assert [*found] == sorted(found, key=lambda prompt: int(prompt[:-1])) == [*read_documents(path, 4)]
