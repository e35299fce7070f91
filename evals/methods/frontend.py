"""SGLang's own frontend language as a method: a program with `fork` and `join`, run against a server.

The program is of the form of SGLang's example of parallel decoding: an outline, a fork for each point of it,
then all of them together again. Its requests carry text, so the server encodes each prompt anew. Before a
fork the frontend has the server prefill the text so far, if its own worker thread has that text by then.
"""

# sglang leaves most of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

import asyncio
import importlib
import threading
from typing import TYPE_CHECKING, Any

from pasta_async.evals.forcing import FORCE
from pasta_async.evals.methods.parts import Part, outline, rounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.evals.methods.track import Case, Engine, Ids, Track, Work

__all__ = ["prepare_frontend"]


async def prepare_frontend(engine: Engine, case: Case) -> Work:
    """Encode what the program is to write; what comes back runs it, in a thread.

    Cancelling that leaves the program to its end: the frontend has no way to abort.
    """
    stages = rounds(case.document)
    parts = [part for stage in stages for part in stage]
    if len(parts) > 1:
        stages = [[Part("", outline(parts) + "\n\n")], *stages]
    prompt = await engine.backend.detokenize(await engine.ask(case.prompt))
    targets: dict[str, Ids] = {}  # by context: the text that the frontend sends
    text, path = prompt, 0
    for stage in stages:
        written = [await engine.encode(part.text) + engine.end for part in stage]
        targets |= {text + heading: ids for heading, ids in zip(_headings(stage), written, strict=True)}
        text += "".join(part.text for part in stage)
        path += max(map(len, written))
    frontend = await asyncio.to_thread(_load)

    async def work(track: Track) -> int:
        await asyncio.to_thread(_run, frontend, prompt, [_headings(one) for one in stages], targets, track)
        return path

    return work


def _headings(stage: Sequence[Part]) -> list[str]:
    """What is put before each forked part; a single one is no fork."""
    if len(stage) == 1:
        return [""]
    return [f"({number}) {part.topic}: " for number, part in enumerate(stage, 1)]


def _load() -> Any:
    """The frontend; importing it takes seconds, and would set uvloop's policy."""
    policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
    try:
        return importlib.import_module("sglang")
    finally:
        asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated]


def _run(
    frontend: Any, prompt: str, stages: Sequence[Sequence[str]], targets: Mapping[str, Ids], track: Track
) -> None:
    """The program."""

    @frontend.function
    def program(s: Any) -> None:
        s += prompt
        for headings in stages:
            if len(headings) == 1:
                s += frontend.gen("part")
                continue
            forks = s.fork(len(headings))
            for index, heading in enumerate(headings):
                forks[index] += heading
                forks[index] += frontend.gen("part")
            forks.join()
            for index in range(len(headings)):
                s += forks[index]["part"]

    state = program.run(backend=_endpoint(targets, track))
    state.sync()
    if error := state.error():
        raise error


def _endpoint(targets: Mapping[str, Ids], track: Track) -> Any:
    """The frontend's client of the server, whose requests are forced."""
    module = importlib.import_module("sglang.lang.backend.runtime_endpoint")
    endpoint = module.RuntimeEndpoint(track.engine.url)
    lock = threading.Lock()

    def send(executor: Any, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        response = module.http_request(endpoint.base_url + "/generate", json={"text": executor.text_, **body})
        endpoint._assert_success(response)  # as RuntimeEndpoint does
        answer = response.json()
        meta = answer["meta_info"]
        cached = meta["cached_tokens"]
        with lock:  # forks are threads
            track.requests += 1
            prefilled = meta["prompt_tokens"] - cached
            track.count(tokens=meta["completion_tokens"], cached=cached, prefilled=prefilled)
        return answer["text"], meta

    def generate(executor: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        forced = [*targets[executor.text_]]
        params = {"max_new_tokens": len(forced), "temperature": 0.0, "custom_params": {"forced": forced}}
        answer = send(executor, {"sampling_params": params, "custom_logit_processor": FORCE})
        track.token_came()
        return answer

    def commit(executor: Any) -> None:
        send(executor, {"sampling_params": {"max_new_tokens": 0}})

    endpoint.generate, endpoint.commit_lazy_operations = generate, commit
    return endpoint
