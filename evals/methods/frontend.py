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

from pasta_async.backends.sglang.launch import find_device
from pasta_async.evals.forcing import FORCE
from pasta_async.evals.methods.parts import outline, rounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pasta_async.evals.methods.parts import Part
    from pasta_async.evals.methods.track import Case, Engine, Ids, Track

__all__ = ["prepare_frontend"]


async def prepare_frontend(engine: Engine, case: Case) -> Callable[[Track], Awaitable[int]]:
    """Encode what the program is to write; what comes back runs it, in a thread.

    Cancelling that leaves the program to its end: the frontend has no way to abort.
    """
    found = rounds(case.document)
    parts = [part for one in found for part in one]
    prompt = await engine.backend.detokenize(await engine.ask(case.prompt))
    script = _Script(prompt, outline(parts) + "\n\n" if len(parts) > 1 else "", found)
    targets = {context: await engine.encode(text) + engine.end for context, text in script.targets().items()}
    frontend = await asyncio.to_thread(_load)

    async def work(track: Track) -> int:
        await asyncio.to_thread(_run, frontend, script, targets, track)
        points = sum(max(len(targets[c]) for c in contexts) for contexts in script.contexts())
        return points + (len(targets[prompt]) if script.outline else 0)

    return work


class _Script:
    """What the program writes, by its context: the text that it sends."""

    def __init__(self, prompt: str, outline: str, found: Sequence[Sequence[Part]]) -> None:
        self.prompt, self.outline, self.found = prompt, outline, found

    def contexts(self) -> list[list[str]]:
        """The contexts of each round's parts."""
        text, result = self.prompt + self.outline, list[list[str]]()
        for one in self.found:
            result.append(
                [text + self.heading(k, part) if len(one) > 1 else text for k, part in enumerate(one)]
            )
            text += "".join(part.text for part in one)
        return result

    def heading(self, index: int, part: Part) -> str:
        """What is put before a forked part."""
        return f"({index + 1}) {part.topic}: "

    def targets(self) -> dict[str, str]:
        """Everything that is decoded, by context."""
        written = {self.prompt: self.outline} if self.outline else {}
        for one, contexts in zip(self.found, self.contexts(), strict=True):
            written |= {context: part.text for context, part in zip(contexts, one, strict=True)}
        return written


def _load() -> Any:
    """The frontend; importing it takes seconds, and would set uvloop's policy."""
    policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
    if find_device() == "cpu":
        importlib.import_module("pasta_async.backends.sglang.cpu")  # stands in for GPU packages
    try:
        return importlib.import_module("sglang")
    finally:
        asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated]


def _run(frontend: Any, script: _Script, targets: Mapping[str, Ids], track: Track) -> None:
    """The program."""

    @frontend.function
    def program(s: Any) -> None:
        s += script.prompt
        if script.outline:
            s += frontend.gen("outline")
        for one in script.found:
            if len(one) == 1:
                s += frontend.gen("part")
                continue
            forks = s.fork(len(one))
            for index, part in enumerate(one):
                forks[index] += script.heading(index, part)
                forks[index] += frontend.gen("part")
            forks.join()
            for index in range(len(one)):
                s += forks[index]["part"]

    state = program.run(backend=_endpoint(targets, track))
    state.sync()
    if error := state.error():
        raise error


def _endpoint(targets: Mapping[str, Ids], track: Track) -> Any:
    """The frontend's client of the server, whose requests are forced."""
    module = importlib.import_module("sglang.lang.backend.runtime_endpoint")
    endpoint = module.RuntimeEndpoint(track.engine.url.rstrip("/"))

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
