from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import run

from pasta_async import Client, InvalidRequestError, Sampling
from pasta_async.evals.answers import answer_all
from pasta_async.evals.documents import Prompt, held_out
from pasta_async.evals.task import main, outcome, table
from pasta_async.jobs import Journal
from pasta_async.testing import ScriptedBackend, VirtualClock

if TYPE_CHECKING:
    from pathlib import Path


def right(prompt: Prompt) -> str:
    assert prompt.example
    return prompt.example.document.format()


async def answered(
    prompts: list[Prompt], scripts: dict[str, str], path: Path, **changed: Any
) -> dict[str, Any]:
    clock = VirtualClock()
    backend = ScriptedBackend(scripts, clock=clock, latency=0.01)
    texts = [prompt.text for prompt in prompts]
    async with Client(backend, clock=clock) as client:
        with Journal(path, {"made": "up", **changed}) as journal:
            answers = await answer_all(client, texts, journal, sampling=Sampling(), together=3)
    return {**outcome(prompts, answers), "requests": len(backend.requests)}


async def test_the_score_is_that_of_the_task(tmp_path: Path) -> None:
    prompts = held_out(["describe", "chain"], 4)
    scripts = {prompt.text: right(prompt) for prompt in prompts} | {prompts[0].text: "I do not know."}
    found = await answered(prompts, scripts, tmp_path / "a.jsonl")
    assert found["all"]["right"]["parallel"]["value"] == 87.5
    assert found["by_family"]["chain"]["right"]["parallel"]["value"] == 100
    assert found["all"]["difference"] == {"value": 0, "low": 0, "high": 0}
    assert found["by_family"]["describe"]["theoretical_speedup"]["value"] > 1
    low, high = (found["all"]["right"]["parallel"][end] for end in ("low", "high"))
    assert 50 < low < 87.5 < high < 100
    assert [row["family"] for row in table(found)] == ["describe", "chain", "all"]


async def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    prompts = held_out(["chain"], 3)
    scripts = {prompt.text: right(prompt) for prompt in prompts}
    path = tmp_path / "a.jsonl"
    first = await answered(prompts, scripts, path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:20])  # interrupted while the fourth was written

    again = await answered(prompts, scripts, path)
    assert 0 < again.pop("requests") < first.pop("requests")
    assert again == first
    assert len(path.read_bytes().splitlines()) == 7
    assert (await answered(prompts, scripts, path))["requests"] == 0


async def test_answers_to_something_else_are_not_mixed_in(tmp_path: Path) -> None:
    prompts = held_out(["chain"], 1)
    scripts = {prompts[0].text: right(prompts[0])}
    await answered(prompts, scripts, tmp_path / "a.jsonl")
    with pytest.raises(InvalidRequestError, match="made: 'up' there, 'again' now"):
        await answered(prompts, scripts, tmp_path / "a.jsonl", made="again")


async def test_an_error_ends_it_and_leaves_what_is_done(tmp_path: Path) -> None:
    prompts = [Prompt("a", "x"), Prompt(" ", "x")]
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        await answered(prompts, {"a": "Fine."}, tmp_path / "a.jsonl")


def test_the_command_scores_the_shipped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(main, "--n 1 --families chain --out", tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["benchmark"] == "task"
    assert result["all"]["prompts"] == 1
    assert "| all | 1 |" in capsys.readouterr().out
