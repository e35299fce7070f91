"""Methods that talk to an SGLang server by themselves: chat completions, and SGLang's own frontend."""

# sglang leaves most of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

import asyncio
import importlib
import threading
from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError
from pasta_async.evals.forcing import FORCE
from pasta_async.evals.methods.track import Part, outline, rounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

    from pasta_async.evals.methods.track import Case, Engine, Ids, Track, Work

__all__ = ["by_hand", "sglang_frontend"]


async def by_hand(engine: Engine, case: Case) -> Work:
    """What one writes without a library: a list of parts, then `asyncio.gather` over chat completions.

    The instruction comes first in each prompt, as it mostly does, so that the prompts share no prefix to
    speak of. A later round sees the text so far. Replies come whole.
    """
    asked = [
        [_completion(prompt, await engine.encode(text) + engine.end) for prompt, text in one]
        for one in _questions(case.prompt, rounds(case.document))
    ]

    async def work(track: Track) -> int:
        for one in asked:
            posts = (engine.http.post("/v1/chat/completions", json=body) for body in one)
            replies = await asyncio.gather(*posts)
            track.note_token()
            for reply in replies:
                _count(track, reply)
        return sum(max(len(body["custom_params"]["forced"]) for body in one) for one in asked)

    return work


def _completion(prompt: str, target: Ids) -> dict[str, Any]:
    """A chat completion that asks for `prompt`, and is made to answer `target`."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "chat_template_kwargs": {"pasta": False},
        "temperature": 0,
        "max_tokens": len(target) + 1,  # an engine may look at the limit before it looks at the stop token
        "custom_logit_processor": FORCE,
        "custom_params": {"forced": target},
    }


def _questions(question: str, found: list[list[Part]]) -> list[list[tuple[str, str]]]:
    """Prompts and what is to be answered, in rounds."""
    parts = [part for one in found for part in one]
    if len(parts) == 1:
        return [[(question, parts[0].text)]]
    asked = [[(f"List the parts that an answer to this should have.\n\n{question}", outline(parts))]]
    text = ""
    for one in found:
        asked.append([(_part_of(question, part.topic, text), part.text) for part in one])
        text += "".join(part.text for part in one)
    return asked


def _part_of(question: str, topic: str, text: str) -> str:
    wanted = f"Write only the part about {topic} of an answer to this." if topic else "Finish this answer."
    return f"{wanted}\n\n{question}" + (f"\n\nThe answer so far:\n{text}" if text else "")


def _count(track: Track, reply: httpx.Response) -> None:
    if reply.is_error:
        raise BackendError(f"{reply.url} answered {reply.status_code}: {reply.text[:300]}")
    usage = reply.json()["usage"]
    if (details := usage.get("prompt_tokens_details")) is None:
        raise BackendError(f"{reply.url} does not tell what was cached: start it with --enable-cache-report")
    cached: int = details["cached_tokens"]
    track.count(tokens=usage["completion_tokens"], cached=cached, prefilled=usage["prompt_tokens"] - cached)


async def sglang_frontend(engine: Engine, case: Case) -> Work:
    """SGLang's own language: a program of the form of its example of parallel decoding, with fork and join.

    An outline, a fork for each point of it, then all of them together again. Its requests carry text, so the
    server encodes each prompt anew. Before a fork the frontend has the server prefill the text so far, if its
    own worker thread has that text by then. It runs in a thread, and cancelling it leaves the program to its
    end: the frontend has no way to abort.
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
            prefilled = meta["prompt_tokens"] - cached
            track.count(tokens=meta["completion_tokens"], cached=cached, prefilled=prefilled)
        return answer["text"], meta

    def generate(executor: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        forced = [*targets[executor.text_]]
        params = {"max_new_tokens": len(forced), "temperature": 0.0, "custom_params": {"forced": forced}}
        answer = send(executor, {"sampling_params": params, "custom_logit_processor": FORCE})
        track.note_token()
        return answer

    def commit(executor: Any) -> None:
        send(executor, {"sampling_params": {"max_new_tokens": 0}})

    endpoint.generate, endpoint.commit_lazy_operations = generate, commit
    return endpoint
