from __future__ import annotations

from pasta_async import Client
from pasta_async.evals.documents import Prompt
from pasta_async.evals.fork_modes import measure, summarise
from pasta_async.testing import ScriptedBackend, VirtualClock

DOCUMENT = (
    "Two parts follow, after a few words to begin with."
    + "".join(f'<promise topic="{k}" tokens="20"/><async>{" word" * 20}</async>' for k in ("one", "two"))
    + "<sync/> Done."
)


async def test_cutting_computes_less_and_asks_more_often():
    clock = VirtualClock()
    backend = ScriptedBackend({"go": DOCUMENT, "plain": "No parts."}, clock=clock, latency=0.01)
    emptied = 0

    async def empty() -> None:
        nonlocal emptied
        emptied += 1

    async with Client(backend, clock=clock) as client:
        prompts = [Prompt("go", "f"), Prompt("plain", "f")]
        answers = await measure(client, prompts, passes=2, empty=empty, clock=clock)

    assert emptied == len(answers) == 8
    assert [answer["mode"][0] for answer in answers] == list("sccs" + "cssc")
    assert {answer["written"] for answer in answers if answer["prompt"] == 0} == {DOCUMENT}
    stream, cut = summarise(answers)
    assert (stream["mode"], cut["mode"]) == ("stream", "cut")
    assert stream["answers"] == cut["answers"] == 2
    assert (stream["round trips"], cut["round trips"]) == (4, 6)
    assert stream["seconds / stream"].startswith("1.000")


async def test_what_main_decoded_is_computed_again_for_its_threads_unless_main_is_cut():
    clock = VirtualClock()
    backend = ScriptedBackend(DOCUMENT, clock=clock, latency=0.01)

    async def leave() -> None:
        """Nothing to do: each prompt is new, and each begins with another mode."""

    async with Client(backend, clock=clock) as client:
        answers = await measure(client, [Prompt("a", "f"), Prompt("b", "f")], empty=leave, clock=clock)

    stream, _, cut, _ = answers
    assert (stream["mode"], cut["mode"]) == ("stream", "cut")
    assert stream["prefilled_tokens"] > cut["prefilled_tokens"]
    assert stream["requests"] < cut["requests"]
    assert stream["fork_tokens"] == cut["fork_tokens"]
    assert stream["fork_cached"] < cut["fork_cached"] < cut["fork_tokens"]
    # one join each, whatever main was cut into; its context is all but what is written behind it
    assert stream["join_tokens"] == cut["join_tokens"] > 2 * 20
    assert 0 < stream["join_cached"] < stream["join_tokens"]
