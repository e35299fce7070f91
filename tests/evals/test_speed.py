from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from commands_run import run as run_command

from pasta_async import Client, Limits
from pasta_async.errors import InvalidRequestError
from pasta_async.evals import speed
from pasta_async.evals.answers import Answer, Form, compare
from pasta_async.evals.documents import Prompt, held_out, read_prompts, stratified
from pasta_async.evals.overview import overview, overview_table
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.speed import SpeedSettings, summarise
from pasta_async.jobs import Journal
from pasta_async.testing import ScriptedBackend, VirtualClock
from pasta_async.training.synthetic import score
from tests.pasta_tiny import LOCAL_TINY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

LATENCY = 0.01


def scripted(
    scripts: Mapping[str, str], clock: VirtualClock
) -> Callable[[], AbstractAsyncContextManager[Client]]:
    """Clients of new backends, which take time for each token and for nothing else."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Client]:
        backend = ScriptedBackend(scripts, clock=clock, latency=LATENCY)
        async with Client(backend, clock=clock) as client:
            yield client

    return opened


def chunk(topic: str, words: int) -> str:
    return f'<promise topic="{topic}" tokens="{words}"/><async>{" word" * words}</async>'


PARALLEL = f"Two parts. {chunk('one', 40)} {chunk('two', 40)}"


async def test_measured_speedups_are_the_theoretical_ones_where_only_tokens_take_time():
    clock = VirtualClock()
    prompts = [Prompt("both", "parallel"), Prompt("one", "plain")]
    scripts = {"both": PARALLEL, "one": "Word" + " word" * 50}
    runs = await speed.measure(scripted(scripts, clock), prompts, SpeedSettings(passes=2))

    both, one = compare(runs)
    assert both.theoretical > 1.5
    assert both.speedup == pytest.approx(both.theoretical)
    assert one.theoretical == 1
    assert one.speedup == pytest.approx(1)
    baseline = next(run for run in runs if run.method == "baseline")
    assert baseline.seconds == pytest.approx(baseline.tokens * LATENCY)


async def test_the_forms_alternate_and_the_next_pass_goes_the_other_way_round():
    clock = VirtualClock()
    prompts = [Prompt(name, "plain") for name in "ab"]
    opened = scripted({"a": "A word.", "b": "A word.", "warm": "A word."}, clock)
    runs = await speed.measure(opened, prompts, SpeedSettings(passes=2), warm=[Prompt("warm", "plain")])

    order = "".join(run.method[0] for run in runs)
    assert order == "bppb" + "pbbp"
    assert [run.number for run in runs] == [0] * 4 + [1] * 4
    assert [run.prompt for run in runs] == [0, 0, 1, 1] * 2


async def test_no_pass_finds_what_an_earlier_one_left_in_the_cache():
    clock = VirtualClock()
    runs = await speed.measure(
        scripted({"both": PARALLEL}, clock), [Prompt("both", "x")], SpeedSettings(passes=3)
    )

    first, again = ([r for r in runs if r.number == number] for number in (0, 2))  # in the same order
    assert [r.cached_tokens for r in first] == [r.cached_tokens for r in again]
    assert [(r.method, r.requests) for r in first] == [("baseline", 1), ("parallel", 3)]


async def test_the_summary_counts_what_is_malformed():
    clock = VirtualClock()
    good, bad = held_out(["describe"], 2)
    assert good.example is not None and bad.example is not None
    scripts = {good.text: good.example.document.format(), bad.text: "Well. <sync/> That is all."}
    runs = await speed.measure(scripted(scripts, clock), [good, bad], SpeedSettings(passes=1))

    (row,) = summarise(runs)
    assert row["family"] == "describe"
    assert row["prompts"] == 2
    assert row["malformed"] == "50%"
    assert row["realised"] == pytest.approx(1)


def run(prompt: int, form: Form, seconds: float, tokens: int, critical: int, number: int = 0) -> Answer:
    return Answer(prompt, form, number, seconds, 0.02, tokens, critical, 1, 30, 70, family="f")


def test_figures_of_known_runs():
    runs = [
        run(0, "parallel", 1.0, 120, 50),
        run(0, "baseline", 2.0, 100, 100),
        run(0, "parallel", 1.0, 120, 50, number=1),
        run(0, "baseline", 8.0, 100, 100, number=1),
        run(1, "parallel", 1.0, 100, 100),
        run(1, "baseline", 1.0, 100, 100),
    ]
    first, second = compare(runs)
    assert (first.speedup, first.theoretical) == (4, 2)
    assert (second.speedup, second.theoretical) == (1, 1)

    (row,) = summarise(runs)
    assert row["speed-up"] == "2.00"
    assert row["theoretical"] == row["realised"] == pytest.approx(2**0.5)
    assert row["cached"] == "30%"
    assert row["first token ms"] == pytest.approx(20)
    assert row["requests"] == 1


def test_answers_that_a_limit_ended_are_in_no_speedup():
    runs = [
        run(0, "parallel", 1.0, 120, 50),
        run(0, "baseline", 2.0, 100, 100),
        replace(run(0, "parallel", 1.0, 120, 50, number=1), finish_reason="length"),
        run(0, "baseline", 8.0, 100, 100, number=1),
        run(1, "parallel", 1.0, 100, 100),
        replace(run(1, "baseline", 9.0, 100, 100), finish_reason="length"),
    ]
    (only,) = compare(runs)
    assert (only.prompt, only.speedup) == (0, 2)
    found = overview(runs)["all prompts"]
    assert found["means"]["measured: plain s / parallel s"]["prompts"] == 1
    assert found["counts"]["ended by length"] == [1, 1]
    nothing = [replace(one, finish_reason="length") for one in runs]
    assert summarise(nothing)[0]["prompts"] == 0
    assert overview_table(overview(nothing))[0]["all prompts"] == "-"


def test_a_text_of_its_own_length_is_compared_with_the_pace_of_plain_answers():
    runs = [
        replace(run(0, "parallel", 1.0, 120, 50), text_tokens=99),
        run(0, "baseline", 0.2, 10, 10),  # shorter; 20 ms a token
    ]
    found = overview(runs)["all prompts"]["means"]
    same_text = found["measured: own text at a plain token's pace / parallel s"]["estimate"]
    assert same_text
    assert same_text["value"] == pytest.approx(100 * 0.02 / 1.0)


async def test_the_overview_tells_what_went_wrong():
    clock = VirtualClock()
    nested = f'One. <promise topic="a"/><async>Two<promise topic="b"/></async> {chunk("a", 5)}'
    scripts = {"both": PARALLEL, "nested": nested, "loop": "It goes round and round again. " * 9}
    prompts = [Prompt(name, "f") for name in scripts]
    settings = SpeedSettings(passes=2, max_tokens=88, temperature=1, seed=3)
    runs = await speed.measure(scripted(scripts, clock), prompts, settings)
    found = overview(runs)
    whole, promised = found["all prompts"], found["with promises"]
    assert whole["counts"]["answers"] == [6, 6]
    assert promised["counts"]["answers"] == [4, 4]
    assert whole["counts"]["promises inside chunks"] == whole["counts"]["answers with one"] == [2]
    assert whole["counts"]["answers with such a promise"] == [2]
    assert whole["counts"]["that repeat themselves"][1] >= 2
    tags, promises = (
        whole["shares"]["answers without a fault in their tags"],
        whole["shares"]["answers with promises"],
    )
    assert tags and tags["value"] == pytest.approx(200 / 3)
    assert promises and promises["value"] == pytest.approx(200 / 3)
    token = promised["means"]["ms a token of the critical path"]["estimate"]
    assert token and token["value"] == pytest.approx(1000 * LATENCY)
    own = promised["means"]["own tokens / critical path"]
    assert own["estimate"] and own["estimate"]["value"] > 1


async def test_the_baseline_is_asked_to_be_brief_too():
    clock, prompts = VirtualClock(), [Prompt("both", "f")]
    scripts = {"both": PARALLEL, "both\n\nBe brief.": "Word word word."}
    runs = await speed.measure(scripted(scripts, clock), prompts, SpeedSettings(passes=3, brief=True))
    assert [one.method[:2] for one in runs] == ["ba", "pa", "br", "pa", "br", "ba", "br", "ba", "pa"]
    found = overview(runs)["all prompts"]["means"]["brief s / parallel s"]["estimate"]
    assert found and found["value"] < 1


async def test_another_engine_writes_the_plain_answers_after_both_forms(tmp_path: Path):
    class Peer:
        """An engine that takes a second for each token."""

        name = "llama.cpp Q8_0"

        def call(self, method: str, prompt: list[int], answer: list[int]) -> float:
            assert method == "write" and prompt
            return 1.0 + len(answer)

    clock, prompts = VirtualClock(), [Prompt("both", "f"), Prompt("one", "f")]
    opened = scripted({"both": PARALLEL, "one": "Word" + " word" * 50}, clock)

    async def go_on() -> list[Answer]:
        with Journal(tmp_path / "rows.jsonl", {"benchmark": "speed"}) as journal:
            peer = cast("Any", Peer())
            return await speed.measure(opened, prompts, SpeedSettings(passes=1), peer=peer, journal=journal)

    runs = await go_on()
    assert [one.method[0] for one in runs] == [*"bpl", *"pbl"]
    for plain in (one for one in runs if one.method == "baseline"):
        copy = next(one for one in runs if one.method == Peer.name and one.prompt == plain.prompt)
        assert (copy.tokens, copy.seconds, copy.text) == (plain.tokens, plain.tokens, plain.text)
    kept = (tmp_path / "rows.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join(kept[:3]) + "\n")  # both forms of the first prompt
    again = [(one.method, one.tokens, one.text) for one in await go_on()]
    assert again == [(one.method, one.tokens, one.text) for one in runs]
    again = await go_on()
    assert [(one.method, one.tokens, one.text) for one in again] == [
        (one.method, one.tokens, one.text) for one in runs
    ]
    found = overview(runs)["all prompts"]["means"]["ms a token, llama.cpp Q8_0"]["estimate"]
    assert found and found["value"] == pytest.approx(1000)


async def test_a_prompt_that_is_too_long_has_an_empty_answer_in_every_form():
    class Peer:
        name = "llama.cpp Q8_0"

        def call(self, method: str, prompt: list[int], answer: list[int]) -> float:
            return 1.0 + len(answer)

    clock = VirtualClock()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Client]:
        backend = ScriptedBackend("A word and another.", clock=clock, latency=LATENCY)
        async with Client(backend, clock=clock, limits=Limits(prompt_tokens=100)) as client:
            yield client

    prompts = [Prompt("word " * 200, "f"), Prompt("Well?", "f")]
    runs = await speed.measure(opened, prompts, SpeedSettings(passes=1, brief=True), peer=cast("Any", Peer()))
    empty = {one.method: one.finish_reason for one in runs if not one.tokens}
    assert empty == dict.fromkeys(("baseline", "parallel", "brief", Peer.name), "length")
    assert [(one.prompt, one.tokens > 0) for one in runs] == [(0, False)] * 4 + [(1, True)] * 4
    (row,) = summarise(runs)
    assert (row["prompts"], row["malformed"]) == (1, "50%")
    counts = overview(runs)["all prompts"]["counts"]
    assert (counts["answers"], counts["ended by length"]) == ([2, 2], [1, 1])


def test_a_stratified_sample_has_every_kind_and_is_the_same_each_time(tmp_path: Path):
    keys = [(kind, length) for kind in "abc" for length in range(30)]
    chosen = stratified(keys, 9)
    assert chosen == sorted({*chosen}) == stratified(keys, 9)
    assert [keys[place][0] for place in chosen] == [*"aaabbbccc"]
    assert [keys[place][1] // 10 for place in chosen] == [0, 1, 2] * 3
    assert stratified(keys, None) == stratified(keys, 90) == [*range(90)]
    rows = ({"instruction": "word " * (place % 7), "dataset": "ab"[place % 2]} for place in range(28))
    write_rows(tmp_path / "prompts.jsonl", rows)
    drawn = read_prompts(tmp_path / "prompts.jsonl", 4)
    assert sorted(prompt.family for prompt in drawn) == [*"aabb"]


def test_a_missing_form_is_refused():
    with pytest.raises(ValueError):
        compare([run(0, "parallel", 1, 1, 1)])


def test_several_families_get_a_row_each_and_one_together():
    runs = [run(0, "parallel", 1, 10, 10), run(0, "baseline", 2, 10, 10)]
    runs += [replace(one, prompt=1, family="g") for one in runs]
    assert [row["family"] for row in summarise(runs)] == ["f", "g", "all"]


def test_held_out_prompts_are_of_both_kinds_and_repeat():
    prompts = held_out(["describe", "chain"], 4)
    assert [prompt.family for prompt in prompts] == ["describe", "chain"] * 4
    splits = {prompt.example.split for prompt in prompts if prompt.example}
    assert splits == {"names", "templates"}
    assert len({prompt.text for prompt in prompts}) == 8
    assert prompts == held_out(["describe", "chain"], 4)
    assert all(score(prompt.example, prompt.example.document.text) for prompt in prompts if prompt.example)


def test_prompts_come_from_a_file(tmp_path: Path):
    file = tmp_path / "prompts.txt"
    file.write_text("First?\n\n  Second?  \n", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(file)] == ["First?", "Second?"]
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(InvalidRequestError):
        read_prompts(file)


def test_prompts_come_from_a_file_of_alpaca_evals_form(tmp_path: Path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"instruction": "First?", "dataset": "koala"}, {"instruction": "Second?\nAnd?"}]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_prompts(file) == [Prompt("First?", "koala"), Prompt("Second?\nAnd?", "file")]
    file.write_text('{"question": "First?"}', encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="instruction"):
        read_prompts(file)


async def test_a_run_that_broke_off_goes_on_where_it_stopped(tmp_path: Path):
    file, prompts = tmp_path / "runs.jsonl", [Prompt(name, "plain") for name in "abc"]
    scripts = dict.fromkeys("abc", "A word and another.")

    async def go_on() -> tuple[list[Answer], float]:
        clock = VirtualClock()
        with Journal(file, {"benchmark": "speed"}) as journal:
            runs = await speed.measure(
                scripted(scripts, clock), prompts, SpeedSettings(passes=2), journal=journal
            )
        return runs, clock.time()

    whole, took = await go_on()
    kept = file.read_text().splitlines()
    assert len(kept) == 1 + len(whole) == 13
    file.write_text("\n".join(kept[:6]) + "\n" + kept[6][:20])  # five whole answers, and a part of one

    again, left = await go_on()
    order = [(run.number, run.method, run.prompt) for run in whole]
    assert [(run.number, run.method, run.prompt) for run in again] == order
    assert again[:5] == whole[:5]
    assert 0 < left < took
    assert (await go_on())[1] == 0
    with pytest.raises(InvalidRequestError):
        Journal(file, {"benchmark": "methods"})


def test_the_command_measures_the_shipped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "speed.jsonl"
    families = "--families describe --families chain"
    run_command(speed.main, f"--backend {LOCAL_TINY} --n 1 --passes 1 {families} --out", out)
    measured, where, *runs = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert measured["benchmark"] == "speed"
    assert measured["backend"] == LOCAL_TINY
    assert where["environment"]["cores"] >= 1
    assert [run["family"] for run in runs] == ["describe"] * 2 + ["chain"] * 2
    assert all(run["well_formed"] and run["seconds"] > run["first_token"] > 0 for run in runs)
    assert all("?" in run["question"] or "." in run["question"] for run in runs), "instruments read it"
    assert "| all | 2 |" in capsys.readouterr().out
    figures = json.loads(out.with_suffix(".figures.json").read_text(encoding="utf-8"))
    assert figures["figures"]["all prompts"]["counts"]["answers"] == [2, 2]


def test_tables_and_raw_rows(tmp_path: Path):
    rows = [{"name": "a", "value": 1.23456, "count": 12345}, {"name": "b", "value": 12345.6, "count": 0}]
    assert markdown_table(rows).splitlines() == [
        "| name | value | count |",
        "| --- | --- | --- |",
        "| a | 1.23 | 12,345 |",
        "| b | 12346 | 0 |",
    ]
    assert markdown_table([]) == ""
    write_rows(tmp_path / "new" / "rows.jsonl", [environment(), *rows])
    where, *read = map(json.loads, (tmp_path / "new" / "rows.jsonl").read_text().splitlines())
    assert read == rows
    assert where["cores"] >= 1
    assert where["cpu"]
