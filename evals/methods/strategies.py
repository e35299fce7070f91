"""The methods: each decodes the same answer in its own way.

What differs is what is decoded besides the text (tags, outlines), what waits for what, and which context each
request has. All requests of a method are prepared before the clock starts; none of them knows the answer's
text before a model would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from pasta_async.errors import BackendError
from pasta_async.evals.forcing import FORCE, FORCED_SAMPLING, encode_segments
from pasta_async.evals.methods.track import Case, Engine, Ids, Method, Track, Work, outline, rounds, stretches
from pasta_async.evals.peers import RemoteEngine
from pasta_async.lang import Promise, Segment, Sync, Text, segments

if TYPE_CHECKING:
    import httpx


async def _pasta(engine: Engine, case: Case, **options: Any) -> Work:
    """The library itself: main goes on while its promises are kept, and sees the chunks behind a sync."""
    ids = await engine.forced.prepare(case.prompt, case.question, plain="baseline" in options)
    options = {"parallel": "always", **options}

    async def work(track: Track) -> int:
        return track.take(await engine.client.generate(ids, sampling=FORCED_SAMPLING, **options))

    return work


_sequential = partial(_pasta, baseline=True)


async def _auto(engine: Engine, case: Case) -> Work:
    """The library as it is by default: it decides by the load, and so has to encode the prompt itself."""
    for plain in (False, True):
        await engine.forced.prepare(case.prompt, case.question, plain=plain)

    async def work(track: Track) -> int:
        return track.take(await engine.client.generate(case.prompt, sampling=FORCED_SAMPLING))

    return work


def llama_cpp(peer: RemoteEngine) -> Method:
    """What someone without this library runs: llama.cpp writes the same plain text, token by token."""

    async def prepare(engine: Engine, case: Case) -> Work:
        ids = await engine.ask(case.prompt)
        text = (*await engine.encode(case.document.text), *engine.end)

        async def work(track: Track) -> int:
            await asyncio.to_thread(peer.call, "write", ids, text)
            track.count(len(text), 0, len(ids))
            return len(text)

        return work

    return Method(peer.name, "llama.cpp writes the plain text, with the same weights", prepare)


def _in_rounds(planned: Sequence[Sequence[tuple[Ids, Ids]]]) -> Work:
    """Decode the target behind each context of a round at the same time, one round after another."""

    async def work(track: Track) -> int:
        for one in planned:
            async with asyncio.TaskGroup() as tasks:
                for number, (context, target) in enumerate(one, int(len(one) > 1)):
                    tasks.create_task(track.decode(context, target, thread=number))
        return sum(max((len(target) for _, target in one), default=0) for one in planned)

    return work


async def _skeleton(engine: Engine, case: Case) -> Work:
    """An outline first, then every point of it at once, each from a prompt of its own.

    As in the authors' code (`outline_batch_scheduler.py` of imagination-research/sot). An answer without
    parts is decoded in sequence, as their router would have it, which costs nothing here.
    """
    parts = [part for one in rounds(case.document) for part in one]
    if len(parts) < 2:
        return await _sequential(engine, case)
    skeleton = outline(parts)
    asked = await engine.ask(
        "Give only the skeleton of an answer to the following question, not its content: a numbered list of "
        f"points, each of three to five words.\n\n{case.prompt}"
    )
    first, rest = skeleton[:2], skeleton[2:]
    asked, written = asked + await engine.encode(first), await engine.encode(rest) + engine.end
    points: list[tuple[Ids, Ids]] = []
    for number, (line, part) in enumerate(zip(skeleton.splitlines(), parts, strict=True), 1):
        context = await engine.ask(
            f"Write one point, and no other, of the answer to the following question.\n\n{case.prompt}\n\n"
            f"The skeleton of the answer is\n\n{skeleton}\n\nContinue point {number}."
        )
        points.append((context + await engine.encode(line), await engine.encode(part.text) + engine.end))

    return _in_rounds([[(asked, written)], points])


async def _apar(engine: Engine, case: Case) -> Work:
    """A fork for each detail, by one control token, while the parent goes on; nothing is ever joined.

    As in the authors' code (THUDM/APAR: `fastchat/vs.py` decodes, `data/filter_structured.py` says what is a
    detail): the child has the parent up to its `[Fork]`, and `[Child]`. Where our rules for details
    (`annotate_by_structure`) find none, the answer is written in sequence.
    """
    from pasta_async.training.data.annotate_structure import annotate_by_structure  # needs a Markdown parser

    document = annotate_by_structure(case.document.text, cut="details")
    if not document.promises:
        return await _sequential(engine, case)
    fork, child = engine.tags.promise, engine.tags.open_async  # two tokens that text does not have
    prompt = await engine.ask(case.prompt, plain=False)
    main: list[int] = []
    children: dict[int, Ids] = {}  # by where they are forked
    for node in document.nodes:
        if isinstance(node, Promise):
            main.append(fork)
            body = await engine.encode(node.chunk.text if node.chunk else "")
            children[len(main)] = body + engine.end
        elif isinstance(node, Text):
            main += await engine.encode(node.text)
    whole = (*main, *engine.end)

    async def work(track: Track) -> int:
        threads = count(1)
        async with asyncio.TaskGroup() as tasks:

            def start(at: int) -> None:
                if at in children:
                    context = (*prompt, *whole[:at], child)
                    tasks.create_task(track.decode(context, children[at], thread=next(threads)))

            await track.decode(prompt, whole, told=start)
        return max([len(whole), *(at + len(body) for at, body in children.items())])

    return work


async def _plan_then_fork(engine: Engine, case: Case) -> Work:
    """Main plans, stops, and waits behind a barrier until all threads are done; then it reads them all again.

    A thread sees the whole plan (main's text between the promises, too) and the name of its part. Behind the
    barrier main's context is the plan and all threads, of which the cache has the first one's text alone.
    """
    context = await engine.ask(case.prompt, plain=False)
    planned: list[list[tuple[Ids, Ids]]] = []
    for nodes in stretches(case.document.nodes):
        bare = [(Segment(n.text),) if isinstance(n, Text) else segments(n.source) for n in nodes]
        plan = await encode_segments(engine.backend, engine.tags, [part for parts in bare for part in parts])
        threads = [await _thread(engine, node) for node in nodes if isinstance(node, Promise)]
        behind = (*context, *plan)
        end = () if nodes and isinstance(nodes[-1], Sync) else engine.end
        planned += [[(context, plan + end)], [(behind + start, body) for start, body in threads]]
        context = (*behind, *(token for start, body in threads for token in (*start, *body)))
    return _in_rounds(planned)


async def _thread(engine: Engine, promise: Promise) -> tuple[Ids, Ids]:
    """What is forced at a thread's start, and what it decodes."""
    body = await engine.encode(promise.chunk.text if promise.chunk else "")
    named = await engine.encode(f"{promise.topic}: ")
    return (engine.tags.open_async, *named), (*body, engine.tags.close_async)


How = Literal["planned", "split", "whole"]


async def _by_hand(engine: Engine, case: Case, *, how: How) -> Work:
    """What one writes without a library: `asyncio.gather` over chat completions, whose replies come whole.

    `planned`: a list of parts first, then each of them; `split`: someone knew the parts; `whole`: all of the
    answer in one reply. The question comes first in each prompt, so that prompts share it as their prefix. A
    later round sees the text so far.
    """
    asked = [
        [_completion(prompt, await engine.encode(text) + engine.end) for prompt, text in one]
        for one in _questions(case, how)
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


def _questions(case: Case, how: How) -> list[list[tuple[str, str]]]:
    """Prompts and what is to be answered, in rounds."""
    question, found = case.prompt, rounds(case.document)
    parts = [part for one in found for part in one]
    if how == "whole" or len(parts) == 1:
        return [[(question, case.document.text)]]
    plan = (f"{question}\n\nList the parts that an answer to this should have.", outline(parts))
    asked, text = [[plan]] if how == "planned" else [], ""
    for one in found:
        asked.append([(_part_of(question, part.topic, text), part.text) for part in one])
        text += "".join(part.text for part in one)
    return asked


def _part_of(question: str, topic: str, text: str) -> str:
    wanted = f"Write only the part about {topic} of an answer to this." if topic else "Finish this answer."
    return f"{question}\n\n{wanted}" + (f"\n\nThe answer so far:\n{text}" if text else "")


def _count(track: Track, reply: httpx.Response) -> None:
    if reply.is_error:
        raise BackendError(f"{reply.url} answered {reply.status_code}: {reply.text[:300]}")
    usage = reply.json()["usage"]
    if (details := usage.get("prompt_tokens_details")) is None:
        raise BackendError(f"{reply.url} does not tell what was cached: start it with --enable-cache-report")
    cached: int = details["cached_tokens"]
    track.count(usage["completion_tokens"], cached, usage["prompt_tokens"] - cached)


_served = partial(Method, needs_server=True)
_ALL = (
    Method("sequential", "an answer without tags, from one request", _sequential),
    Method("pasta", "PASTA (arXiv 2502.11517), as pasta_async decodes it", _pasta),
    Method("auto", "the same, as parallel as the load lets it be (`load`)", _auto, optional=True),
    Method("skeleton", "Skeleton-of-Thought with its router (arXiv 2307.15337)", _skeleton),
    Method("apar", "APAR (arXiv 2401.06761): forks by structure, no join", _apar),
    Method(
        "plan-then-fork",
        "like ThreadWeaver (arXiv 2512.07843) and APR (arXiv 2504.15466): plan, barrier, prefill again",
        _plan_then_fork,
    ),
    _served(
        "by hand",
        "httpx and asyncio.gather over an OpenAI endpoint: a plan, then each part, all unstreamed",
        partial(_by_hand, how="planned"),
    ),
    _served("split by hand", "the same, where someone has split the prompt", partial(_by_hand, how="split")),
    _served("sequential, whole", "one such reply, unstreamed", partial(_by_hand, how="whole")),
    _served("pasta, whole chunks", "as `pasta`, each chunk unstreamed", partial(_pasta, whole_chunks=True)),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
"""All methods by name, in the order of the tables."""
