"""Answers in both forms, timed, and the figures that come of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pasta_async import Client, Limits
from pasta_async.errors import InvalidRequestError
from pasta_async.evals import speed
from pasta_async.evals.answers import Answer, ask, of_method, read_answers, read_prompts
from pasta_async.evals.speed import SAME_ANSWER, SpeedSettings, describe, pairs, summarise
from pasta_async.testing import ScriptedBackend, VirtualClock
from pasta_async.training.jobs import Journal
from tests.helpers.answer_runs import promise
from tests.helpers.commands_run import failed, status
from tests.helpers.commands_run import run as run_command
from tests.pasta_tiny import LOCAL_TINY

LATENCY = 0.01
PLAIN_ANSWER = "times sooner than the plain answer"


def settings(**changed: Any) -> SpeedSettings:
    return SpeedSettings.model_validate({"backend": "none", "prompts": "none", **changed})


def scripted(scripts: Mapping[str, str] | str, clock: VirtualClock, **limits: Any) -> Client:
    """A client of a new backend, which takes time for each token and for nothing else."""
    if not isinstance(scripts, str):
        scripts = {speed.WARM_UP: "Apples.", **scripts}
    backend = ScriptedBackend(scripts, clock=clock, latency=LATENCY)
    return Client(backend, clock=clock, limits=Limits(**limits))


PARALLEL = f"Two parts. {promise('one', ' word' * 40, 40)} {promise('two', ' word' * 40, 40)}"


async def test_measured_speedups_are_the_counted_ones_where_only_tokens_take_time():
    clock = VirtualClock()
    scripts = {"both": PARALLEL, "one": "Word" + " word" * 50}
    rows = await speed.measure(scripted(scripts, clock), ["both", "one"], settings(passes=2))
    both, one = ([row for row in rows if row.prompt == prompt] for prompt in (0, 1))
    figures = describe(both)
    counted = figures["tokens of the plain answer / critical path"]["value"]
    assert counted > 1.5
    assert figures[PLAIN_ANSWER]["value"] == pytest.approx(counted)
    assert figures[SAME_ANSWER]["value"] == pytest.approx(counted)
    assert describe(one)[SAME_ANSWER]["value"] == pytest.approx(1)
    baseline = of_method(rows, "baseline")[0]
    assert baseline.seconds == pytest.approx(baseline.tokens * LATENCY)


async def test_the_forms_alternate():
    client = scripted({"a": PARALLEL, "b": "A word."}, VirtualClock())
    rows = await speed.measure(client, ["a", "b"], settings(passes=3))
    assert "".join(row.method[0] for row in rows) == "bppb" + "pbbp" + "bppb"
    assert [row.number for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row.prompt for row in rows] == [0, 0, 1, 1] * 3


def run(prompt: int, form: str, seconds: float, tokens: int, critical: int, **changed: Any) -> Answer:
    row = Answer(prompt, form, 0, seconds, 0.02, tokens, critical, 1, 30, 70, text_tokens=tokens - 1)
    return replace(row, **changed)


def test_an_answer_is_not_sooner_for_being_short():
    rows = [
        run(0, "parallel", 0.2, 10, 10),  # no promise, and a tenth of the text, at the same pace
        run(0, "baseline", 2.0, 100, 100),
    ]
    with pytest.raises(InvalidRequestError, match="every method"):
        pairs(rows[:1], "parallel", "baseline")
    figures = describe(rows)
    assert next(name for name in figures if "times sooner" in name) == SAME_ANSWER
    assert figures[SAME_ANSWER]["value"] == pytest.approx(1)
    assert figures[PLAIN_ANSWER]["value"] == pytest.approx(10)


def test_answers_that_a_limit_ended_are_in_no_speedup():
    rows = [
        run(0, "parallel", 1.0, 120, 50),
        run(0, "baseline", 2.0, 100, 100),
        run(0, "parallel", 1.0, 120, 50, number=1, finish_reason="length"),
        run(0, "baseline", 8.0, 100, 100, number=1),
        run(1, "parallel", 1.0, 100, 100),
        run(1, "baseline", 9.0, 100, 100, finish_reason="length"),
    ]
    ((answer, _),) = pairs(rows, "parallel", "baseline")
    assert (answer.prompt, answer.number) == (0, 0)
    figures = describe(rows)
    assert (figures["ended by length"], figures["ended by length, plain"]) == (1, 1)
    nothing = describe([replace(row, finish_reason="length") for row in rows])
    assert nothing[PLAIN_ANSWER] is None
    assert nothing[SAME_ANSWER] is None


async def test_figures_are_of_all_prompts_and_of_those_with_promises():
    clock = VirtualClock()
    scripts = {"both": PARALLEL, "bad": "Well. <sync/> That is all.", "loop": "It goes round again. " * 9}
    rows = await speed.measure(scripted(scripts, clock), [*scripts], settings(passes=1))
    figures = summarise(rows)
    assert [*figures] == ["parallel", "parallel, with promises"]
    whole = figures["parallel"]
    assert (whole["prompts"], figures["parallel, with promises"]["prompts"]) == (3, 1)
    assert whole["ms from a fork to its first token"] == pytest.approx(1000 * LATENCY)
    assert whole["answers with promises, %"]["value"] == pytest.approx(100 / 3)
    assert whole["answers without a fault in their tags, %"]["value"] == pytest.approx(200 / 3)
    assert whole["ms a token, plain"]["value"] == pytest.approx(1000 * LATENCY)


async def test_in_parallel_an_untrained_model_writes_an_outline() -> None:
    text = "Two:\n\n1. **Tea**: Old.\n\n2. **Coffee**: Newer."
    async with Client(ScriptedBackend(text, trained=False)) as client:
        rows = [await ask(client, Answer(0, form, question="x")) for form in ("baseline", "parallel")]
    assert [(row.text, row.promises) for row in rows] == [(text, 0), (text, 2)]


async def test_a_prompt_that_is_too_long_has_an_empty_answer_in_every_form():
    client = scripted("A word and another.", VirtualClock(), prompt_tokens=100)
    rows = await speed.measure(client, ["Well?", "long " * 200], settings(passes=1))
    assert [(row.prompt, row.tokens > 0, row.finish_reason) for row in rows] == [
        *[(0, True, "stop")] * 2,
        *[(1, False, "length")] * 2,
    ]
    figures = describe(rows)
    written = describe([row for row in rows if row.tokens])
    assert (figures.pop("too long prompts"), written.pop("too long prompts")) == (1, 0)
    assert figures == written
    assert figures["prompts"] == 1
    nothing = describe([row for row in rows if not row.tokens])
    assert nothing["seconds"] is nothing["answers with promises, %"] is None


async def test_a_run_that_broke_off_goes_on_where_it_stopped(tmp_path: Path):
    file, asked = tmp_path / "rows.jsonl", ["a", "b", "c"]

    async def go_on() -> tuple[list[Answer], float]:
        clock = VirtualClock()
        client = scripted("A word and another.", clock)
        with Journal(file, {"benchmark": "speed"}) as journal:
            rows = await speed.measure(client, asked, settings(passes=2), journal)
        return rows, clock.time()

    whole, took = await go_on()
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + len(whole) == 13
    file.write_text("\n".join(lines[:6]) + "\n" + lines[6][:20])  # five whole answers, and a part of one
    again, seconds_left = await go_on()
    order = [(row.number, row.method, row.prompt) for row in whole]
    assert [(row.number, row.method, row.prompt) for row in again] == order
    assert again[:5] == whole[:5]
    assert 0 < seconds_left < took
    assert (await go_on())[1] == 0


def test_an_answer_may_have_any_end_of_a_line(tmp_path: Path):
    text = "one\u2028two\u0085three\nfour"
    with Journal(tmp_path / "rows.jsonl", {"benchmark": "speed"}) as journal:
        journal.append(asdict(Answer(0, "parallel", text=text)))
    _, [answer] = read_answers(tmp_path / "rows.jsonl")
    assert answer.text == text


# Prompts and tables ---------------------------------------------------------------------------------------


def test_a_sample_is_in_order_and_the_same_each_time(tmp_path: Path):
    (tmp_path / "p.txt").write_text("\n".join(f"{number}?" for number in range(30)))
    chosen = [int(prompt[:-1]) for prompt in read_prompts(tmp_path / "p.txt", 9)]
    assert chosen == sorted({*chosen})
    assert chosen == [int(prompt[:-1]) for prompt in read_prompts(tmp_path / "p.txt", 9)]
    assert len(chosen) == 9
    assert len(read_prompts(tmp_path / "p.txt", 90)) == 30


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.txt", "First?\n\n  Second?  \n", ["First?", "Second?"]),
        ("p.jsonl", '{"instruction": "One?", "dataset": "koala"}\n{"prompt": "Two?"}', ["One?", "Two?"]),
        ("p.ndjson", '{"instruction": "One?"}\n', ["One?"]),
    ],
)
def test_prompts_come_from_files_of_several_forms(
    name: str, content: str, expected: list[str], tmp_path: Path
):
    (tmp_path / name).write_text(content)
    assert read_prompts(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "content"), [("p.txt", "\n"), ("p.jsonl", ""), ("p.json", "[\n{}\n]"), ("none.txt", None)]
)
def test_prompts_that_cannot_be_used_are_refused(name: str, content: str | None, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidRequestError, match=name):
        read_prompts(tmp_path / name)


# Commands -------------------------------------------------------------------------------------------------


def test_the_command_measures_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "p.txt").write_text("Tell me of tea.\nTell me of milk.\n")
    out = tmp_path / "speed.jsonl"
    options = f"--backend {LOCAL_TINY} --prompts {tmp_path}/p.txt --max-tokens 12 --passes 1"
    run_command(speed.main, f"{options} --out", out)
    measured, where, *_ = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert measured["benchmark"] == "speed"
    assert where["environment"]["cores"] >= 1
    _, rows = read_answers(out)
    assert all(row.seconds > row.first_token > 0 for row in rows)
    plain, parallel = (of_method(rows, form)[0].text for form in ("baseline", "parallel"))
    assert plain != parallel
    shown = capsys.readouterr().out
    assert f"| {SAME_ANSWER} |" in shown and "|  | parallel |" in shown


def test_answers_that_time_nothing_are_kept_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "p.txt").write_text("Tell me of tea.\n")
    out = tmp_path / "plain.jsonl"
    options = f"--backend {LOCAL_TINY} --prompts {tmp_path}/p.txt --max-tokens 12 --plain-only"
    run_command(speed.main, f"{options} --out", out)
    assert [row.method for row in read_answers(out)[1]] == ["baseline"]
    assert "1 answers are written" in capsys.readouterr().out
    assert status(speed.main, options) == 2
    error = capsys.readouterr().err
    assert "--out" in error and "Value error" not in error


def test_sampled_answers_are_drawn_alike_in_every_run(tmp_path: Path):
    (tmp_path / "p.txt").write_text("Tell me of tea.\nTell me of coffee.\nTell me of milk.\n")
    options = f"--backend {LOCAL_TINY} --prompts {tmp_path}/p.txt --temperature 1 --max-tokens 12"
    texts: dict[str, list[Any]] = {}
    for name, more in {
        "a": "--passes 1 --together 4",
        "b": "--passes 1",
        "c": "--passes 1 --together 4 --seed 2",
        "d": "--sample 2 --passes 2 --together 4",
    }.items():
        run_command(speed.main, f"{options} {more} --out", tmp_path / name)
        rows = read_answers(tmp_path / name)[1]
        texts[name] = sorted((row.method, row.question, row.number, row.text) for row in rows)
    assert texts["a"] == texts["b"] != texts["c"]
    assert len(texts["d"]) == 2 * 2 * 2
    assert {row for row in texts["d"] if not row[2]} < {*texts["a"]}
    assert "max_tokens: 12 there, 13 now" in failed(
        speed.main, f"{options} --passes 1 --max-tokens 13 --out", tmp_path / "b"
    )
