from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands_run import refused, run

from pasta_async import Client, InvalidRequestError, Sampling
from pasta_async.errors import BackendStatusError
from pasta_async.evals.answers import Answer, answer_all, of_form
from pasta_async.evals.documents import Prompt, held_out
from pasta_async.evals.frontier import main, outcome, table
from pasta_async.jobs import Journal
from pasta_async.testing import ScriptedBackend, VirtualClock
from pasta_async.training.judging import Judge
from pasta_async.training.synthetic import grade

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.training.samples import SampledPrompt


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


def test_everything_about_unseen_templates_is_over_their_frames() -> None:
    """Many prompts of few frames tell little: figures that took them for independent had an interval."""
    prompts = [one for one in held_out(["describe"], 40) if one.example and one.example.split == "templates"]
    frames: dict[str, list[Prompt]] = {}
    for one in prompts:
        frames.setdefault(one.cluster, []).append(one)
    few = [one for own in [*frames.values()][:9] for one in own]
    assert len(few) > 12
    answers = [
        Answer(
            place,
            "parallel",
            tokens=50,
            critical_path=20 + place,
            text_tokens=40,
            written='Yes. <promise topic="a"/><async>No.</async><sync/>' if place % 2 else "Yes.",
            promises=place % 2,
            well_formed=place % 3 > 0,
            finish_reason="length" if place in (0, 7) else "stop",
        )
        for place in range(len(few))
    ]
    plain = [Answer(place, "baseline", tokens=60, critical_path=60) for place in range(len(few))]
    grades = [0.5 + 0.01 * place for place in range(len(few))]
    found = outcome(few, answers, grades, (plain, grades))["all"]
    speeds = ("theoretical_speedup", "length_matched_speedup")
    for name in (*speeds, "parallel", "synced", "malformed", "cut_by_length"):
        assert found[name]["value"] > 0, name
        assert found[name]["low"] is None, name
    names = [Prompt(f"{place}", "file") for place in range(len(few))]  # each a cluster of its own
    assert outcome(names, answers, grades, (plain, grades))["all"]["theoretical_speedup"]["low"] > 0


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


class Picky(Judge):
    """Refuses what is said first."""

    made = asked = 0

    def __init__(self) -> None:
        type(self).made += 1

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        type(self).asked += 1
        if self.asked == 1:
            raise BackendStatusError("it is too long", status=400)
        return 0.5


def test_a_judge_is_made_once_and_what_it_refuses_is_counted(tmp_path: Path) -> None:
    run(main, f"--n 3 --families chain --max-tokens 4 --judge {__name__}:Picky --out", tmp_path)
    own = json.loads((tmp_path / "result.json").read_text())["all"]
    assert Picky.made == 1
    assert (own["prompts"], own["unjudged"], own["baseline"]["unjudged"]) == (3, 0, 1)
    assert own["score"]["value"] == own["baseline"]["score"]["value"] == 50
    assert own["difference"]["value"] == 0


def test_a_judge_that_is_not_there_is_told_before_anything_is_answered(tmp_path: Path) -> None:
    judge = f"--judge likelihood --judge-model {tmp_path}/nowhere"
    assert "nowhere" in refused(main, f"--n 1 --families chain {judge} --out", tmp_path / "out")
    assert not (tmp_path / "out/answers.jsonl").exists()


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
