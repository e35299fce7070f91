"""The methods: each decodes the same answer in its own way.

What differs is what is decoded besides the text (tags, outlines), what waits for what, and which context each
request has. All requests of a method are prepared before the clock starts; none of them knows the answer's
text before a model would.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta_async.evals.forced import FORCED_SAMPLING
from pasta_async.evals.methods.frontend import prepare_frontend
from pasta_async.evals.methods.parts import outline, rounds
from pasta_async.evals.methods.track import at_once
from pasta_async.lang import Promise, Segment, Sync, Text, segments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pasta_async.evals.methods.track import Case, Engine, Ids, Track
    from pasta_async.lang import Node

    Work = Callable[[Track], Awaitable[int]]
    """Decodes the answer; returns its critical path in tokens."""

__all__ = ["METHODS", "Method"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode an answer."""

    name: str
    source: str
    """The paper or program that it follows."""
    prepare: Callable[[Engine, Case], Awaitable[Work]]
    """Encodes what it needs, then gives what is timed."""
    needs_server: bool = False
    """Whether it talks to an SGLang server by itself."""


async def _sequential(engine: Engine, case: Case) -> Work:
    """The answer without tags, in one request."""
    ids = await engine.ask_library(case, plain=True)

    async def work(track: Track) -> int:
        generation = await engine.client.generate(ids, sampling=FORCED_SAMPLING, baseline=True)
        return track.take(generation)

    return work


async def _pasta(engine: Engine, case: Case) -> Work:
    """The library itself: main goes on while its promises are kept, and sees the chunks behind a sync."""
    ids = await engine.ask_library(case, plain=False)

    async def work(track: Track) -> int:
        return track.take(await engine.client.generate(ids, sampling=FORCED_SAMPLING))

    return work


async def _skeleton(engine: Engine, case: Case) -> Work:
    """An outline first, then every point of it at once, each from a prompt of its own.

    The points see the question and the outline, not each other. An answer without parts is decoded in
    sequence, as the paper's router would have it.
    """
    parts = [part for one in rounds(case.document) for part in one]
    if len(parts) < 2:
        return await _sequential(engine, case)
    skeleton = outline(parts)
    asked = await engine.ask(
        f"{case.prompt}\n\nGive only the skeleton of the answer: a numbered list of points, three to five "
        "words each."
    )
    written = await engine.encode(skeleton) + engine.end
    contexts = [
        await engine.ask(
            f"{case.prompt}\n\nThe skeleton of the answer is:\n{skeleton}\n\nWrite point {number} of it, and "
            "no other point."
        )
        for number in range(1, len(parts) + 1)
    ]
    targets = [await engine.encode(part.text) + engine.end for part in parts]

    async def work(track: Track) -> int:
        await track.decode(asked, written)
        both = zip(contexts, targets, strict=True)
        await at_once(*(track.decode(c, t, thread=k) for k, (c, t) in enumerate(both, 1)))
        return len(written) + max(map(len, targets))

    return work


async def _apar(engine: Engine, case: Case) -> Work:
    """A fork for each detail, by one control token, while the parent goes on; nothing is ever joined."""
    prompt = await engine.ask(case.prompt, plain=False)
    main: list[int] = []
    children: list[tuple[int, Ids]] = []
    for node in case.document.nodes:
        if isinstance(node, Promise):
            main.append(engine.tags.open_async)
            body = await engine.encode(node.chunk.text if node.chunk else "")
            children.append((len(main), (*body, engine.tags.close_async)))
        elif isinstance(node, Text):
            main += await engine.encode(node.text)
    whole = (*main, *engine.end)

    async def work(track: Track) -> int:
        async with asyncio.TaskGroup() as tasks:

            def fork(number: int) -> None:
                start, body = children[number]
                tasks.create_task(track.decode((*prompt, *whole[:start]), body, thread=number + 1))

            marks = {start: lambda k=k: fork(k) for k, (start, _) in enumerate(children)}
            await track.decode(prompt, whole, marks=marks)
        return max([len(whole), *(start + len(body) for start, body in children)])

    return work


@dataclass(frozen=True, slots=True)
class _Round:
    """A plan, and the threads that carry it out."""

    context: Ids
    plan: Ids
    behind: Ids
    """What the threads see."""
    threads: list[tuple[Ids, Ids]]
    """What is forced at the start of each, and what it decodes."""


async def _plan_then_fork(engine: Engine, case: Case) -> Work:
    """Main plans, stops, and waits behind a barrier until all threads are done; then it reads them all again.

    Main's text between the promises belongs to the plan. A thread sees the whole plan and the name of its
    part. Behind the barrier main's context is the plan and then all threads: what the cache does not have of
    that, each thread's text but the first one's, is computed again.
    """
    context = await engine.ask(case.prompt, plain=False)
    planned = list[_Round]()
    for nodes in _stretches(case.document.nodes):
        plan = await engine.segments([part for node in nodes for part in _bare(node)])
        threads = [await _thread(engine, node) for node in nodes if isinstance(node, Promise)]
        is_last = not nodes or not isinstance(nodes[-1], Sync)
        planned.append(_Round(context, plan + (engine.end if is_last else ()), (*context, *plan), threads))
        context = (*context, *plan, *(token for start, body in threads for token in (*start, *body)))

    async def work(track: Track) -> int:
        path = 0
        for one in planned:
            await track.decode(one.context, one.plan)
            threads = enumerate(one.threads, 1)
            await at_once(*(track.decode(one.behind + start, body, thread=k) for k, (start, body) in threads))
            path += len(one.plan) + max((len(body) for _, body in one.threads), default=0)
        return path

    return work


def _stretches(nodes: tuple[Node, ...]) -> list[list[Node]]:
    """The nodes up to each sync, it included, and what is left."""
    result = [list["Node"]()]
    for node in nodes:
        result[-1].append(node)
        if isinstance(node, Sync):
            result.append([])
    return result


def _bare(node: Node) -> tuple[Segment, ...]:
    return (Segment(node.text),) if isinstance(node, Text) else segments(node.source)


async def _thread(engine: Engine, promise: Promise) -> tuple[Ids, Ids]:
    """What is forced at a thread's start, and what it decodes."""
    body = await engine.encode(promise.chunk.text if promise.chunk else "")
    named = await engine.encode(f"{promise.topic}: ")
    return (engine.tags.open_async, *named), (*body, engine.tags.close_async)


async def _by_hand(engine: Engine, case: Case) -> Work:
    """What one writes without a library: ask for the parts, then for each of them, `asyncio.gather`.

    The instruction comes first in each prompt, as it mostly does, so that the prompts share no prefix to
    speak of. A later round sees the text so far.
    """
    found = rounds(case.document)
    if len(found) == 1 and len(found[0]) == 1:
        return await _sequential(engine, case)
    parts = [part for one in found for part in one]
    asked = await engine.ask(f"List the parts that an answer to this should have.\n\n{case.prompt}")
    listed = await engine.encode(outline(parts)) + engine.end
    requests: list[list[tuple[Ids, Ids]]] = []
    text = ""
    for one in found:
        prompts = [_hand_written(case.prompt, part.topic, text) for part in one]
        targets = [await engine.encode(part.text) + engine.end for part in one]
        requests.append([(await engine.ask(p), t) for p, t in zip(prompts, targets, strict=True)])
        text += "".join(part.text for part in one)

    async def work(track: Track) -> int:
        await track.decode(asked, listed)
        for one in requests:
            await asyncio.gather(*(track.decode(c, t, thread=k) for k, (c, t) in enumerate(one, 1)))
        return len(listed) + sum(max(len(target) for _, target in one) for one in requests)

    return work


def _hand_written(prompt: str, topic: str, text: str) -> str:
    wanted = f"Write only the part about {topic} of an answer to this." if topic else "Finish this answer."
    return f"{wanted}\n\n{prompt}" + (f"\n\nThe answer so far:\n{text}" if text else "")


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("sequential", "an answer without tags, from one request", _sequential),
        Method("pasta", "PASTA (arXiv 2502.11517), as pasta_async decodes it", _pasta),
        Method("skeleton", "Skeleton-of-Thought with its router (arXiv 2307.15337)", _skeleton),
        Method("apar", "like APAR (arXiv 2401.06761): forks by structure, no join", _apar),
        Method(
            "plan-then-fork",
            "like ThreadWeaver (arXiv 2512.07843) and APR (arXiv 2504.15466): plan, barrier, prefill again",
            _plan_then_fork,
        ),
        Method("by hand", "asyncio.gather over prompts of their own, no shared prefix", _by_hand),
        Method(
            "sglang frontend",
            "SGLang's own language (arXiv 2312.07104): sgl.function with fork and join",
            prepare_frontend,
            needs_server=True,
        ),
    )
}
"""All methods by name, in the order of the tables."""
