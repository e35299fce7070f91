from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async import Client, InvalidRequestError, Sampling
from pasta_async.evals.answers import answer_all, of_form
from pasta_async.evals.documents import Prompt, held_out
from pasta_async.evals.frontier import main, outcome, table
from pasta_async.jobs import Journal
from pasta_async.testing import ScriptedBackend, VirtualClock
from pasta_async.training.synthetic import grade

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
    async with Client(backend, clock=clock) as client:
        with Journal(path, {"made": "up", **changed}) as journal:
            answers = await answer_all(client, prompts, journal, sampling=Sampling(), together=3)
    parallel, baseline = of_form(answers, "parallel"), of_form(answers, "baseline")
    own, plain = (
        [grade(p.example, one.text) for p, one in zip(prompts, found, strict=True) if p.example]
        for found in (parallel, baseline)
    )
    return {**outcome(prompts, parallel, own, (baseline, plain)), "requests": len(backend.requests)}


async def test_the_score_is_that_of_the_task(tmp_path: Path) -> None:
    prompts = held_out(["describe", "chain"], 12)
    scripts = {prompt.text: right(prompt) for prompt in prompts} | {prompts[0].text: "I do not know."}
    found = await answered(prompts, scripts, tmp_path / "a.jsonl")
    assert found["all"]["right"]["value"] == pytest.approx(2300 / 24)
    assert found["by_family"]["chain"]["right"]["value"] == 100
    assert found["all"]["difference"] == {"value": 0, "low": 0, "high": 0, "bound": 0}
    assert found["by_family"]["describe"]["theoretical_speedup"]["value"] > 1
    low, high = (found["all"]["right"][end] for end in ("low", "high"))
    assert 75 < low < 2300 / 24 < high <= 100
    groups = ["describe", "chain", "unseen names", "unseen templates", "all"]
    assert [row[""] for row in table(found)] == [*groups, *(f"{name}, baseline" for name in groups)]
    assert found["by_split"]["unseen templates"]["all"]["right"]["value"] == 100
    assert found["by_split"]["unseen names"]["by_family"]["describe"]["right"]["value"] == pytest.approx(
        500 / 6
    )


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
    with pytest.raises(InvalidRequestError, match="made"):
        await answered(prompts, scripts, tmp_path / "a.jsonl", made="again")


async def test_an_error_ends_it_and_leaves_what_is_done(tmp_path: Path) -> None:
    prompts = [Prompt("a", "x"), Prompt(" ", "x")]
    with pytest.raises(InvalidRequestError):
        await answered(prompts, {"a": "Fine."}, tmp_path / "a.jsonl")


def test_the_command_compares_the_shipped_model_with_its_own_sequential_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(main, "--n 1 --families chain --out", tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["benchmark"] == "frontier"
    assert result["all"]["prompts"] == result["all"]["baseline"]["prompts"] == 1
    assert "| all | 1 |" in capsys.readouterr().out


def test_a_model_is_compared_with_another_that_was_measured_with_equal_options(tmp_path: Path) -> None:
    some = "--n 1 --families chain"
    run(main, f"{some} --sequential --out", tmp_path / "plain")
    run(main, f"{some} --baseline {tmp_path / 'plain'} --out", tmp_path / "model")
    result = json.loads((tmp_path / "model/result.json").read_text())
    assert result["forms"] == ["parallel"]
    assert result["all"]["baseline"] == json.loads((tmp_path / "plain/result.json").read_text())["all"]
    other = f"--n 2 --families chain --baseline {tmp_path / 'plain'} --out"
    assert refused(main, other, tmp_path / "other").startswith("InvalidRequestError")
    nested = f"{some} --baseline {tmp_path / 'model'} --out"
    assert refused(main, nested, tmp_path / "other").startswith("InvalidRequestError")
