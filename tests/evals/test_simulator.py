from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run

from pasta_async import Sampling
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.evals import load as loads
from pasta_async.evals.load import drive
from pasta_async.evals.methods import __main__ as methods
from pasta_async.evals.methods.strategies import METHODS
from pasta_async.evals.methods.track import Case, open_engine
from pasta_async.evals.simulator import EngineModel, SimulatedBackend
from pasta_async.lang import parse
from pasta_async.protocol import DecodeRequest

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.evals.load import Block


def chunk(topic: str, words: int) -> str:
    return f'<promise topic="{topic}" tokens="{words}"/><async>{" word" * words}</async>'


WRITTEN = f"First:{chunk('one', 60)} Second:{chunk('two', 60)} Third:{chunk('three', 60)}<sync/> So it is."
DOCUMENTS = {"many": parse(WRITTEN)}
CASES = [Case(0, "many", DOCUMENTS["many"])]


REAL = EngineModel(step=0.01, sequence=0.001, context=2e-6, prefill=1e-4, round_trip=0.003)


async def load(engines: int, at_once: int, method: str, constants: EngineModel, answers: int = 8) -> Block:
    backend = SimulatedBackend(constants.model_copy(update={"gpus": engines}))
    async with open_engine(backend, DOCUMENTS) as engine:
        return await drive(engine, [METHODS[method]], CASES * answers, mode="closed", level=at_once)


async def test_an_answer_takes_a_step_for_each_token_and_a_trip_for_each_request():
    block = await load(1, 1, "sequential", EngineModel(step=0.01, round_trip=0.5), answers=1)
    (answer,) = block.answers
    assert answer.seconds == pytest.approx(answer.tokens * 0.01 + 0.5)
    assert answer.first_token == pytest.approx(0.51)


async def test_parallel_decoding_gains_where_steps_cost_the_same_and_loses_where_each_request_costs():
    for constants, gains in ((EngineModel(step=0.01), True), (EngineModel(step=0.0, sequence=0.01), False)):
        sequential = await load(1, 4, "sequential", constants)
        pasta = await load(1, 4, "pasta", constants)
        assert (pasta.seconds < sequential.seconds) is gains


async def test_more_engines_share_the_answers():
    constants = EngineModel(step=0.0, sequence=0.01)
    one = await load(1, 8, "sequential", constants)
    eight = await load(8, 8, "sequential", constants)
    assert eight.seconds < one.seconds / 2


async def test_a_fork_finds_what_has_ended_and_where_engines_share_what_runs():
    async def prefilled(*, embedded: bool) -> int:
        backend = SimulatedBackend(REAL.model_copy(update={"embedded": embedded}))
        async with open_engine(backend, DOCUMENTS) as engine:
            ids = await engine.forced.prepare("Once more", CASES[0].question, plain=False)
            return (
                await engine.client.generate(ids, sampling=Sampling(max_tokens=10**9))
            ).usage.prefilled_tokens

    assert await prefilled(embedded=True) < await prefilled(embedded=False)


def request(backend: SimulatedBackend, forced: tuple[int, ...]) -> DecodeRequest:
    return DecodeRequest("a", 0, (8, 9), 50, Sampling(), extra={"forced": forced})


async def test_a_request_that_is_closed_early_leaves_its_batch():
    backend = SimulatedBackend(EngineModel(step=1.0, sequence=1.0))
    ids = tuple(await backend.encode("some words to be written one by one"))
    async with aclosing(backend.decode(request(backend, ids))) as pieces:
        await anext(pieces)
    began = backend.clock.time()
    alone = [piece async for piece in backend.decode(request(backend, ids[:3]))]
    assert [piece.finish_reason for piece in alone] == [None, None, "length"]
    assert backend.clock.time() - began == pytest.approx(1 + 2 * 2)  # a prefill, then two steps


async def test_what_is_not_forced_is_refused_and_closing_ends_what_is_open():
    backend = SimulatedBackend(EngineModel(step=1.0))
    with pytest.raises(InvalidRequestError):
        await anext(backend.decode(request(backend, ())))
    ids = tuple(await backend.encode("some words"))
    pieces = backend.decode(request(backend, ids))
    await anext(pieces)
    await backend.aclose()
    with pytest.raises(BackendError):
        await anext(pieces)


def test_a_load_on_simulated_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    documents, out = tmp_path / "documents.jsonl", tmp_path / "rows.jsonl"
    record = {"id": "1", "messages": [{"role": "user", "content": "many"}], "written": WRITTEN}
    documents.write_text(json.dumps(record) + "\n")
    command = f"--documents {documents} --rates 1 --rates 4 --answers 6 --rounds 1"
    run(loads.main, command, "--backend", "simulated:gpus=2&step=0.005", "--out", out)
    assert "| 4 a second | pasta | 6 |" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == 2 + 6
    for wrong in ("step=1&speed=1", "step=-1", "gpus=2", "x"):
        refusal = refused(loads.main, command, "--backend", f"simulated:{wrong}")
        assert refusal.startswith("InvalidRequestError")


def test_methods_are_compared_on_a_simulated_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    documents = tmp_path / "documents.jsonl"
    record = {"id": "1", "messages": [{"role": "user", "content": "many"}], "written": WRITTEN}
    documents.write_text(json.dumps(record) + "\n")
    out = tmp_path / "rows.jsonl"
    run(methods.main, f"--backend simulated:step=0.01 --documents {documents} --passes 1 --out {out}")
    rows = [json.loads(line) for line in out.read_text().splitlines()[2:]]
    assert len(rows) == 5
    assert all(row["seconds"] == pytest.approx(row["critical_path"] * 0.01, rel=0.2) for row in rows)
    assert "| pasta | 1 |" in capsys.readouterr().out
