"""The page at `/`, and the one that `pasta-async generate --html` writes, used by a real Chromium."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from pasta_async import Client, DecodeRequest, Piece, Sampling, ThreadFailedError
from pasta_async.clock import REAL_CLOCK
from pasta_async.testing import Fault, RandomBackend, ScriptedBackend
from pasta_async.trace import timeline_page
from tests.helpers.cli_program import CAUSES, END, INTRO, OUTCOME, TEXT, WRITTEN, scripted
from tests.helpers.live_server import WatchedBackend, running_in_loop
from tests.pasta_tiny import LOCAL_TINY

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = """How many fruits do Velora and Tamiko have in all?
Velora has 3 apples, 2 pears and 4 figs. Tamiko has 5 plums, 3 lemons and 2 melons."""
STALL = Fault(2, 3, "stall", times=2)
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


async def open_page(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.locator("#engine")).to_have_class("engine found")


async def ask(page: Page, prompt: str = "Why?") -> None:
    await page.get_by_label("Prompt").fill(prompt)
    await page.get_by_role("button", name="Answer").click()


def state(page: Page) -> Locator:
    return page.get_by_role("status")


def lane(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=f"{name}: text")


async def test_an_answer_of_the_real_engine_its_lanes_and_its_baseline(page: Page) -> None:
    async with Client(LOCAL_TINY) as client, running_in_loop(client.backend) as url:
        answer = await client.generate(PROMPT, sampling=Sampling())
        baseline = await client.generate(PROMPT, sampling=Sampling(), baseline=True)
        assert len(answer.threads) > 1, "the model makes no promise here; this test needs one"
        await open_page(page, url)
        await ask(page, PROMPT)
        await expect(state(page)).to_contain_text("Done in")
        await expect(page.locator("#answer")).to_have_text(answer.text)
        for record in answer.threads[1:]:
            await expect(lane(page, f"{record.thread} {record.topic}")).to_have_text(record.text)
        names = page.locator(".timeline-name")
        topics = [f"{record.thread} {record.topic}" for record in answer.threads[1:]]
        await expect(names).to_have_text(["main", *topics])
        await expect(page.locator("#numbers")).to_contain_text(f"{answer.text_speedup:.2f}")

        await page.get_by_role("button", name="Compare with baseline").click()
        await expect(state(page)).to_contain_text("The parallel answer was")
        await expect(lane(page, "baseline")).to_have_text(baseline.text)
        await expect(names).to_have_text(["main", *topics, "baseline"])
        tokens = baseline.usage.completion_tokens
        await expect(page.locator("#numbers")).to_contain_text(f"{tokens} / {answer.critical_path} tokens")
        await expect(page.locator("#answer")).to_have_text(answer.text)


async def test_promises_and_syncs_show_and_chunks_have_the_colour_of_their_thread(page: Page) -> None:
    async with running_in_loop(scripted()) as url:
        await open_page(page, url)
        await ask(page)
        await expect(state(page)).to_contain_text("Done in")
        await expect(page.locator("#answer")).to_have_text(TEXT)
        await expect(page.locator("#answer [data-thread='1']")).to_have_text(CAUSES)
        await expect(page.locator("#answer [data-thread='2']")).to_have_text(OUTCOME)
        main = f"{INTRO}promise 1 causes · 20promise 2 outcome · 10sync · joined{END}"
        await expect(lane(page, "main")).to_have_text(main)


async def test_a_thread_fills_its_lane_while_others_are_silent_and_stop_ends_all(page: Page) -> None:
    backend = WatchedBackend(scripted(STALL))
    async with running_in_loop(backend) as url:
        await open_page(page, url)
        await ask(page)
        await expect(lane(page, "1 causes")).to_have_text(CAUSES)
        await expect(lane(page, "2 outcome")).to_have_text(" The outcome was")
        await expect(page.locator("#answer")).to_have_text(INTRO + CAUSES + " The outcome was")
        await expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
        assert backend.open
        await page.get_by_role("button", name="Stop").click()
        await expect(state(page)).to_contain_text("Stopped")
        await asyncio.to_thread(backend.wait, lambda engine: engine.open == 0)
        await expect(page.locator("#answer")).to_have_text(INTRO + CAUSES + " The outcome was")
        await expect(page.get_by_role("button", name="Answer")).to_be_visible()
        await expect(page.get_by_role("button", name="Compare with baseline")).to_be_disabled()


async def test_leaving_the_page_ends_the_answer(page: Page) -> None:
    backend = WatchedBackend(scripted(STALL))
    async with running_in_loop(backend) as url:
        await open_page(page, url)
        await ask(page)
        await expect(lane(page, "2 outcome")).to_have_text(" The outcome was")
        await page.goto("about:blank")
        await asyncio.to_thread(backend.wait, lambda engine: engine.open == 0)


async def test_a_failure_is_told_in_words_and_the_text_so_far_stays(page: Page) -> None:
    async with running_in_loop(scripted(Fault(2, 3, "fail"))) as url:
        await open_page(page, url)
        await ask(page)
        await expect(page.get_by_role("alert")).to_contain_text("thread 2 failed: scripted")
        await expect(page.get_by_role("article", name="2 outcome")).to_have_attribute("data-state", "failed")
        await expect(page.locator("#answer")).to_have_text(INTRO + CAUSES + " The outcome was")
        await expect(page.get_by_role("button", name="Answer")).to_be_enabled()


async def test_mistakes_are_told_in_words(page: Page) -> None:
    async with running_in_loop(scripted()) as url:
        await open_page(page, url)
        await ask(page, "  ")
        await expect(page.get_by_role("alert")).to_have_text("Write a prompt first.")
        await expect(page.get_by_label("Prompt")).to_be_focused()
        await page.get_by_text("Settings").click()
        await page.get_by_label("Temperature").fill("11")
        await ask(page)
        await expect(page.get_by_role("alert")).to_contain_text("temperature")
    await page.get_by_label("Temperature").fill("0")
    await page.get_by_role("button", name="Answer").click()
    await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")


async def test_a_server_with_a_key_asks_for_it(page: Page) -> None:
    async with running_in_loop(scripted(), api_keys=("open sesame",)) as url:
        await page.goto(url)
        await expect(page.get_by_role("alert")).to_contain_text("wants an API key")
        await expect(page.get_by_label("API key")).to_be_focused()
        await page.get_by_label("API key").fill("open sesame")
        await page.keyboard.press("Tab")
        await expect(page.locator("#engine")).to_have_text("scripted")
        await expect(page.get_by_role("alert")).to_be_hidden()
        await ask(page)
        await expect(page.locator("#answer")).to_have_text(TEXT)
        await page.reload()
        await expect(page.get_by_label("API key")).to_have_value("")


async def test_everything_works_from_the_keyboard(page: Page) -> None:
    async with running_in_loop(scripted(STALL)) as url:
        await open_page(page, url)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="To the prompt")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Prompt")).to_be_focused()
        await page.keyboard.press("Control+A")
        await page.keyboard.type("Why?")
        await page.keyboard.press("Control+Enter")
        await expect(lane(page, "2 outcome")).to_have_text(" The outcome was")
        await page.keyboard.press("Escape")
        await expect(state(page)).to_contain_text("Stopped")
        for _ in range(4):  # past the examples
            await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name="Answer")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Stop")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Answer")).to_be_focused()


@pytest.mark.parametrize("context", [PHONE], indirect=True)
async def test_on_a_phone_nothing_sticks_out_and_a_tap_asks(page: Page) -> None:
    async with running_in_loop(ScriptedBackend("word " * 40 + "a" * 400, clock=REAL_CLOCK)) as url:
        await open_page(page, url)
        await page.get_by_role("button", name="Answer").tap()
        await expect(state(page)).to_contain_text("Done in")
        assert await page.evaluate("() => document.documentElement.scrollWidth") == 390
        for button in await page.get_by_role("button").all():
            box = await button.bounding_box()
            assert box is None or (box["height"] >= 32 and box["x"] + box["width"] <= 390)


# Plans ------------------------------------------------------------------------------------------------------

COLOURS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sky": {"enum": ["blue", "grey"]},
        "sea": {"enum": ["green", "black"]},
        "mood": {"type": "integer", "minimum": 1, "maximum": 5, "x-pasta": {"after": ["sky", "sea"]}},
    },
}


class HeldBackend(RandomBackend):
    """Holds the tokens of the second field back until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async with aclosing(super().decode(request)) as pieces:
            async for piece in pieces:
                if request.thread == 2:
                    await self.go_on.wait()
                yield piece


async def write_plan(page: Page, form: Any) -> None:
    await page.get_by_label("Plan", exact=True).check()
    await page.get_by_label("Form").fill(form if isinstance(form, str) else json.dumps(form))


def graph(page: Page) -> Locator:
    return page.locator("#graph").get_by_role("img")


async def object_of(page: Page) -> Any:
    return json.loads(await page.locator("#answer").text_content() or "")


async def test_the_example_of_a_plan_is_filled_by_the_real_engine(page: Page) -> None:
    async with Client(LOCAL_TINY) as client, running_in_loop(client.backend) as url:
        await open_page(page, url)
        await page.get_by_label("Plan", exact=True).check()
        await expect(graph(page)).to_have_accessible_name(
            "strengths at once; weaknesses at once; stars after strengths, weaknesses; "
            "verdict after strengths, weaknesses, stars"
        )
        schema = json.loads(await page.get_by_label("Form").input_value())
        bounds = (await client.check(schema)).bounds
        assert bounds
        await expect(page.locator("#verdict")).to_have_text(
            f"This plan can be kept: at most {bounds.tokens} tokens, "
            f"{bounds.critical_path} one after another, 2 fields at once."
        )
        prompt = await page.get_by_label("Prompt").input_value()
        filled = await client.fill(prompt, schema, sampling=Sampling())
        await page.get_by_role("button", name="Fill").click()
        tokens = filled.usage.completion_tokens
        await expect(state(page)).to_contain_text(
            f"4 threads, {filled.critical_path} of {tokens} tokens one after another."
        )
        assert await object_of(page) == filled.value
        await expect(lane(page, "4 verdict")).to_have_text(filled.value["verdict"])
        names = ["1 strengths", "2 weaknesses", "3 stars", "4 verdict"]
        await expect(page.locator(".timeline-name")).to_have_text(names)
        await expect(page.locator("[data-hole][data-state='done']")).to_have_count(4)


async def test_what_was_typed_stays_when_a_plan_is_asked_for(page: Page) -> None:
    async with running_in_loop(RandomBackend()) as url:
        await open_page(page, url)
        await page.get_by_label("Prompt").fill("My own.")
        await page.get_by_label("Plan", exact=True).check()
        await expect(graph(page)).to_be_visible()
        await expect(page.get_by_label("Prompt")).to_have_value("My own.")


async def test_a_field_is_shown_while_another_one_is_silent_and_who_sees_both_waits(page: Page) -> None:
    backend = HeldBackend()
    async with running_in_loop(backend) as url:
        await open_page(page, url)
        await write_plan(page, COLOURS)
        await expect(graph(page)).to_have_accessible_name("sky at once; sea at once; mood after sky, sea")
        await page.get_by_role("button", name="Fill").click()
        await expect(page.locator("[data-hole='sky']")).to_have_attribute("data-state", "done")
        await expect(lane(page, "1 sky")).to_have_text(re.compile("blue|grey"))
        await expect(page.locator("[data-hole='sea']")).to_have_attribute("data-state", "decodes")
        await expect(page.get_by_role("region", name="3 mood")).to_have_count(0)
        await expect(page.locator("#answer")).to_contain_text('"sky"')
        backend.go_on.set()
        await expect(state(page)).to_contain_text("Done in")
        written = await object_of(page)
        assert list(written) == ["sky", "sea", "mood"]
        await expect(lane(page, "3 mood")).to_have_text(str(written["mood"]))

        await page.get_by_role("button", name="Compare with baseline").click()
        await expect(state(page)).to_contain_text("The parallel answer was")
        names = ["1 sky", "2 sea", "3 mood", "baseline"]
        await expect(page.locator(".timeline-name")).to_have_text(names)
        await expect(lane(page, "baseline")).to_contain_text('"mood"')


async def test_threads_of_items_share_a_node(page: Page) -> None:
    kind = {"enum": ["x"]}
    item: dict[str, Any] = {
        "type": "object",
        "properties": {"a": kind, "b": {**kind, "x-pasta": {"after": []}}},
    }
    fields: dict[str, Any] = {"list": {"type": "array", "items": item, "minItems": 2, "maxItems": 2}}
    fields |= {key: {**kind, "x-pasta": {"together": "pair"}} for key in ("c", "d")}
    async with running_in_loop(RandomBackend()) as url:
        await open_page(page, url)
        await write_plan(page, {"type": "object", "properties": fields})
        await expect(page.locator("[data-hole]")).to_have_count(4)  # the graph, in which a run shows itself
        await page.get_by_role("button", name="Fill").click()
        await expect(state(page)).to_contain_text("Done in")
        pair = {"a": "x", "b": "x"}
        assert await object_of(page) == {"list": [pair, pair], "c": "x", "d": "x"}
        names = ["1 list", "2 c", "3 d", "4 list[0].b", "5 list[1].b"]
        await expect(page.locator(".timeline-name")).to_have_text(names)
        await expect(page.locator("[data-hole][data-state='done']")).to_have_count(4)


async def test_what_check_finds_stands_at_the_form(page: Page) -> None:
    async with running_in_loop(RandomBackend()) as url:
        await open_page(page, url)
        fields = {"a": {"enum": ["x"], "x-pasta": {"after": ["b"]}}}
        await write_plan(page, {"type": "object", "properties": fields})
        findings = page.get_by_role("list", name="Findings")
        await expect(page.locator("#verdict")).to_have_text(
            re.compile("^This plan cannot be kept: at most 5 tokens")
        )
        await expect(findings).to_have_text("a After('b') names no field here unknown-hole")
        await page.get_by_role("button", name="Fill").click()
        await expect(page.get_by_role("alert")).to_contain_text("names no field here")
        fields["b"] = {"enum": ["x"], "x-pasta": {"after": ["a"]}}
        await write_plan(page, {"type": "object", "properties": fields})
        await expect(findings).to_contain_text("a, b wait for one another cycle")
        await write_plan(page, {"type": "object", "properties": {"a": {"x-pasta": {"befor": 1}}}})
        await expect(page.locator("#verdict")).to_contain_text("x-pasta of 'a' cannot be used: befor")
        await write_plan(page, "{")
        await expect(page.locator("#verdict")).to_contain_text("The form is no JSON")
        await page.get_by_role("button", name="Fill").click()
        await expect(page.get_by_role("alert")).to_contain_text("The form is no JSON")
        await expect(page.get_by_label("Form")).to_be_focused()


async def test_text_of_the_model_is_never_markup(page: Page) -> None:
    hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script> & <b>bold</b>'
    written = f'{hostile}<promise topic="&lt;b&gt;" tokens="10"/><async>{hostile}</async><sync/>{hostile}'
    async with running_in_loop(ScriptedBackend(written, clock=REAL_CLOCK)) as url:
        await open_page(page, url)
        await ask(page, hostile)
        await expect(state(page)).to_contain_text("Done in")
        await expect(page.locator("#answer")).to_have_text(hostile * 3)
        await expect(
            page.locator("main :is(img, script, b:not([class]), i:not([data-thread]))")
        ).to_have_count(0)
        await expect(page).to_have_title("pasta_async playground")


# The page of an answer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [{"offline": True}], indirect=True)
async def test_it_draws_the_timeline_from_the_file_alone(page: Page, tmp_path: Path) -> None:
    backend = ScriptedBackend(WRITTEN, latency=1.0)
    async with Client(backend, clock=backend.clock) as client:
        answer = await client.generate("Why?")
        baseline = await client.generate("Why?", baseline=True)
    file = tmp_path / "answer.html"
    file.write_text(timeline_page(answer, baseline, prompt="Why?"), "utf-8")
    await page.goto(file.as_uri())
    await expect(page.locator(".timeline-name")).to_have_text(["main", "1 causes", "2 outcome", "baseline"])
    await expect(page.locator("#answer")).to_have_text(TEXT)
    await expect(page.locator("#answer [data-thread='1']")).to_have_text(CAUSES)
    await expect(page.locator("#numbers")).to_contain_text(f"{answer.theoretical_speedup(baseline):.2f}")
    await expect(page.locator("path.join")).to_have_count(2)
    await expect(page.locator(".timeline-wait")).to_have_count(1)
    row = page.get_by_role("listitem").filter(has_text="1 causes")
    record = answer.threads[1]
    assert record.started is not None and record.ended is not None
    await expect(row).to_contain_text(f"decoded from {record.started:.1f} s to {record.ended:.1f} s")


async def test_an_answer_is_not_faster_for_saying_less(page: Page) -> None:
    backend, long = ScriptedBackend(WRITTEN, latency=1.0), ScriptedBackend("word " * 400, latency=1.0)
    async with Client(backend, clock=backend.clock) as client, Client(long, clock=long.clock) as plain:
        answer = await client.generate("Why?")
        baseline = await plain.generate("Why?", baseline=True)
    await page.set_content(timeline_page(answer, baseline, prompt="Why?"))
    measured = answer.measured_speedup(baseline)
    assert measured < 2 < baseline.elapsed / answer.elapsed
    await expect(page.locator("#numbers dd").first).to_have_text(f"{measured:.2f}\u00d7")


@pytest.mark.parametrize("thread", range(3))
async def test_an_answer_that_failed_is_drawn_as_far_as_it_went(page: Page, thread: int) -> None:
    backend = ScriptedBackend(WRITTEN, latency=1.0, faults=[Fault(thread, 2)])
    async with Client(backend, clock=backend.clock) as client:
        with pytest.raises(ThreadFailedError) as caught:
            await client.generate("Why?")
    assert caught.value.partial is not None
    await page.set_content(timeline_page(caught.value.partial))
    await expect(page.locator(".timeline-name").first).to_have_text("main")
    await expect(page.locator("path.join")).to_have_count(0)
