"""The live view, drawn on a recorded console, and the timeline."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from pasta_async import Client, Generation, Sampling
from pasta_async.cli.commands import GenerateOptions, show_answer
from pasta_async.cli.display import summary
from pasta_async.cli.live import LiveDisplay, view
from pasta_async.testing import ScriptedBackend
from tests.helpers.cli_program import CAUSES, INTRO, TEXT, WRITTEN


def picture(generation: Generation, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(view(generation, width=width))
    return console.export_text().splitlines()


async def test_each_thread_has_a_row_with_topic_progress_and_text() -> None:
    backend = ScriptedBackend(WRITTEN, latency=1.0, thread_latency={2: 0.1})
    async with Client(backend, clock=backend.clock) as client, client.stream("x") as stream:
        async for event in stream:
            if event.type == "sync.waiting":
                break
        waiting = stream.partial
        assert waiting
        done = await stream.result()
    rows = picture(waiting)
    assert INTRO in rows[1]
    one, two = rows[3:]
    assert one.startswith("1 causes")
    assert "/20" in one
    assert two.startswith("2 outcome")
    assert "━" * 12 in two, "it has ended: its bar is full"
    assert "━" * 12 not in one, "it has not"
    assert CAUSES.strip() in "\n".join(picture(done))


async def test_the_display_ends_with_the_answer_the_timeline_and_the_numbers() -> None:
    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)
    backend = ScriptedBackend(WRITTEN, latency=0.25)
    async with Client(backend, clock=backend.clock) as client:
        options = GenerateOptions(prompt="Compare.", compare=True)
        await show_answer(client, options, Sampling(), LiveDisplay(console))
    shown = console.export_text()
    text, bars, numbers = shown[shown.rindex(TEXT) :].strip().split("\n\n")
    assert text == TEXT
    assert [row.split("  ")[0].strip() for row in bars.splitlines()] == [
        "main",
        "1 causes",
        "2 outcome",
        "baseline",
        "",
    ]
    assert "speed-up: " in numbers


async def test_markup_in_an_answer_is_text() -> None:
    backend = ScriptedBackend('[bold]x[/] <promise topic="[red]t" tokens="10"/><async>[/]</async>')
    async with Client(backend, clock=backend.clock) as client:
        done = await client.generate("x")
    shown = "\n".join(picture(done))
    assert "[bold]x[/]" in shown
    assert "1 [red]t" in shown


async def test_control_characters_of_an_answer_are_never_shown() -> None:
    control = "\x1b[2J\x9b31m\a"
    promised = f'<promise topic="t{control}" tokens="10"/><async>B. {control}</async>'
    backend = ScriptedBackend(f"A. {control} {promised}")
    console = Console(file=io.StringIO(), width=100, record=True)
    async with Client(backend, clock=backend.clock) as client:
        done = await client.generate("x")
        await show_answer(client, GenerateOptions(prompt="x"), Sampling(), LiveDisplay(console))
    shown = "\n".join([*picture(done), *summary(done), console.export_text()])
    assert shown.count("t\ufffd[2J\ufffd31m\ufffd") == 3
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


@pytest.mark.parametrize(("topic", "named"), [("a topic of five words", False), ("", True)])
async def test_the_timeline_names_what_is_wrong_with_tags_but_no_advice_about_style(
    topic: str, named: bool
) -> None:
    async with Client(
        ScriptedBackend(f'<promise topic="{topic}" tokens="10"/><async>Tea.</async>')
    ) as client:
        done = await client.generate("x")
    (found,) = done.diagnostics
    assert (found.code in summary(done)[-1]) is named is not done.well_formed
