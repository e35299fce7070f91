"""Ways to decode one answer in parallel, compared: same engine, prompts and answers, in one run.

    python -m pasta_async.evals.methods --backend local:FOLDER --documents documents.jsonl --sample 60

The answers are forced (pasta_async.evals.forcing), so every method decodes the same text, and whatever it
needs besides: tags, an outline, its prompts. The methods take turns at each answer, in an order that goes
round, and a number before the question keeps an answer from finding another's KV. Before anything counts,
each method writes an answer of another kind. docs/evaluation.md says what each leaves out.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from pydantic import Field

from pasta_async import Backend, Client, Generation, Sampling
from pasta_async.backends.local.machine import available_cores
from pasta_async.cli.command import Command, Count, command
from pasta_async.clock import REAL_CLOCK, Clock
from pasta_async.errors import PastaError
from pasta_async.evals.answers import Answer, cold_client, costs_of, of_method, take_turns
from pasta_async.evals.engine import LlamaCpp, LlamaCppFiles
from pasta_async.evals.forcing import (
    FORCED_LIMITS,
    FORCED_SAMPLING,
    ForcedBackend,
    ForcedSettings,
    Ids,
    force,
    texts_of,
)
from pasta_async.evals.report import markdown_table
from pasta_async.evals.speed import describe_costs, grouped_mean, pairs, speedup
from pasta_async.lang import Document, Promise, Sync, Text, parse
from pasta_async.plans import After, Plan, Tokens
from pasta_async.protocol import DecodeRequest
from pasta_async.training.jobs import Journal

Work = Callable[["TimedAnswer"], Awaitable[int]]
"""Decodes an answer; returns its critical path in tokens."""

MethodName = Literal["sequential", "pasta", "plan", "auto", "skeleton", "apar"]
SEQUENTIAL: MethodName = "sequential"

_NUMBERS = itertools.count(random.randrange(900**2))
_WARM_UP = parse(
    'Two kinds. <promise topic="apples" tokens="20"/><async>Apples grow in cool places, on trees.</async> '
    '<promise topic="dates" tokens="20"/><async>Dates grow on palms, where it is hot.</async><sync/> Enjoy.'
)
"""An answer with two threads and a join, which does not count."""


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and the answer that every method is to write."""

    index: int
    question: str
    document: Document
    prompt: str = ""
    """The question with a number of its own before it, so that no answer finds another's KV."""

    def fresh(self) -> Case:
        """The case with a new number."""
        number = next(_NUMBERS)
        return replace(self, prompt=f"[{number % 900 + 100} {number // 900 % 900 + 100}] {self.question}")


WARM_UP = Case(-1, "Name two kinds of fruit.", _WARM_UP)


def cases_of(documents: Mapping[str, Document]) -> list[Case]:
    """A case for each document."""
    return [Case(index, *item) for index, item in enumerate(documents.items())]


# The engine, and one answer under way ---------------------------------------------------------------------


class ForcedEngine(NamedTuple):
    """A backend that is forced, and the library on it."""

    forced: ForcedBackend
    client: Client
    clock: Clock


@asynccontextmanager
async def open_forced_engine(
    backend: Backend, documents: Mapping[str, Document], clock: Clock = REAL_CLOCK
) -> AsyncGenerator[ForcedEngine]:
    """An engine for these documents and `WARM_UP`, on a backend, which stays open.

    Raises:
        UnsupportedModelError: The backend's model cannot be forced.
    """
    forced = ForcedBackend(backend, {WARM_UP.question: WARM_UP.document, **documents})
    async with Client(forced, limits=FORCED_LIMITS, clock=clock) as client:
        await client.connect()
        yield ForcedEngine(forced, client, clock)


class TimedAnswer:
    """One answer under way: decodes, and counts.

    Attributes:
        began: Time at which it began, on the engine's clock.
        costs: Its costs, by their names in an `Answer`.
    """

    def __init__(self, engine: ForcedEngine) -> None:
        self.engine: ForcedEngine = engine
        self.began: float = engine.clock.time()
        self.costs: dict[str, Any] = {}
        self._answer = uuid4().hex

    async def decode(
        self, context: Ids, target: Ids, *, thread: int = 0, notify: Callable[[int], object] | None = None
    ) -> None:
        """Have the engine write `target` behind the whole `context`. Cancelling it aborts the request.

        Each thread has a number of its own; `notify` is called with the number of tokens so far, at each.
        """
        backend = self.engine.forced.inner
        request = DecodeRequest(self._answer, thread, context, len(target), Sampling())
        written = cached = 0
        async with aclosing(backend.decode(force(backend, request, target))) as pieces:
            async for piece in pieces:
                self.costs.setdefault("first_token", self.engine.clock.time() - self.began)
                for _ in piece.ids:
                    written += 1
                    if notify:
                        notify(written)
                cached = cached if piece.cached_tokens is None else piece.cached_tokens
        if written < len(target):
            raise PastaError(f"the engine wrote {written} of {len(target)} tokens: is its context too short?")
        self.count(written, cached, len(context) - cached)

    def count(self, tokens: int, cached: int, prefilled: int) -> None:
        """Count a request that is over: tokens decoded, context tokens that the cache had, and had not."""
        new = {"tokens": tokens, "cached_tokens": cached, "prefilled_tokens": prefilled, "requests": 1}
        for name, value in new.items():
            self.costs[name] = self.costs.get(name, 0) + value

    def adopt_costs(self, answer: Generation) -> int:
        """Take over the costs of a whole answer of the library; returns its critical path."""
        if answer.finish_reason != "stop":
            raise PastaError(
                f"the engine ended an answer of {answer.text_tokens} tokens: is its context too short?"
            )
        self.costs = costs_of(answer)
        return answer.critical_path


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode an answer."""

    name: str
    prepare: Callable[[ForcedBackend, Case], Work]
    """Encodes what the method needs; returns the work, which is timed."""


async def warm_up(engine: ForcedEngine, methods: Iterable[Method]) -> None:
    """Have each method write an answer that does not count. Cancelling it aborts what is under way."""
    for method in methods:
        await time_answer(engine, method, WARM_UP)


async def time_answer(engine: ForcedEngine, method: Method, case: Case, number: int = 0) -> Answer:
    """Write a case's answer by a method; see `time_prepared`. What it encodes beforehand is not timed."""
    return await time_prepared(engine, method, case, method.prepare(engine.forced, case.fresh()), number)


async def time_prepared(
    engine: ForcedEngine, method: Method, case: Case, work: Work, number: int = 0
) -> Answer:
    """Time the work that a method has prepared. Cancelling it aborts what is under way."""
    timed = TimedAnswer(engine)
    critical_path = await work(timed)
    seconds = engine.clock.time() - timed.began
    costs: dict[str, Any] = {"first_token": seconds, **timed.costs, "critical_path": critical_path}
    return Answer(case.index, method.name, number, seconds, **costs)


# The methods ----------------------------------------------------------------------------------------------
# They differ in what is decoded besides the text (tags, outlines), what waits for what, and which context
# each request has. None knows the answer's text before a model would.


def _pasta(forced: ForcedBackend, case: Case, *, baseline: bool = False) -> Work:
    """PASTA (arXiv 2502.11517), as the library decodes it: main goes on, and sees chunks behind a sync."""
    ids = forced.encode_question(case.prompt, plain=baseline)

    async def work(timed: TimedAnswer) -> int:
        answer = await timed.engine.client.generate(
            ids, sampling=FORCED_SAMPLING, baseline=baseline, parallel="always"
        )
        return timed.adopt_costs(answer)

    return work


_sequential = partial(_pasta, baseline=True)


def _auto(forced: ForcedBackend, case: Case) -> Work:
    """The library as it is by default: it decides by the load, and so has to encode the prompt itself."""

    async def work(timed: TimedAnswer) -> int:
        return timed.adopt_costs(await timed.engine.client.generate(case.prompt, sampling=FORCED_SAMPLING))

    return work


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the visible text that is decoded on its own."""

    topic: str
    """Empty where nothing was promised."""
    text: str


def independent_parts(document: Document) -> list[list[Part]]:
    """The visible text as parts that do not depend on each other, in rounds that have to come one by one.

    A round ends at a sync. A part is a promised chunk with the text before it; text behind the last one of a
    round belongs to it, and a round without promises is one part.
    """
    result: list[list[Part]] = []
    parts: list[Part] = []  # of this round
    text = ""  # visible, behind the last part
    for node in (*document.nodes, Sync()):  # the answer's end closes the last round
        text += node.text
        if isinstance(node, Promise):
            parts.append(Part(node.topic, text))
            text = ""
        elif isinstance(node, Sync):
            # Text behind the last promise belongs to its part; without any promise it is a part alone.
            if parts:
                parts[-1] = Part(parts[-1].topic, parts[-1].text + text)
            elif text:
                parts.append(Part("", text))
            if parts:
                result.append(parts)
            parts = []
            text = ""
    return result


def _plan(forced: ForcedBackend, case: Case) -> Work:
    """A plan of the library (docs/plans.md): a template with a hole for each part, which sees earlier rounds.

    Headings and tags are given by the template, and decoded by no model. An answer of one part needs no plan,
    and is decoded in sequence.
    """
    holes: list[Ids] = []
    template = ""
    annotations: dict[str, tuple[After, Tokens]] = {}
    for parts in independent_parts(case.document):
        earlier = After(*annotations)
        for part in parts:
            heading = (part.topic or "Conclusion").replace("{", "{{").replace("}", "}}")
            template += f"[{len(holes) + 1}: {heading}]\n{{part{len(holes)}}}\n\n"
            holes.append((*forced.encode(part.text), forced.tags.close_async))
            annotations[f"part{len(holes) - 1}"] = earlier, Tokens(len(holes[-1]))
    if len(holes) < 2:
        return _sequential(forced, case)
    plan = Plan(template, **annotations)
    ids = forced.encode_question(f"{case.prompt}\n\n{plan.instruction()}", plain=False)

    async def work(timed: TimedAnswer) -> int:
        forced.plans[ids] = holes
        try:
            filled = await timed.engine.client.fill(ids, plan, instruct=False, sampling=FORCED_SAMPLING)
        finally:
            del forced.plans[ids]
        return timed.adopt_costs(filled.generation)

    return work


def _skeleton(forced: ForcedBackend, case: Case) -> Work:
    """Skeleton-of-Thought (arXiv 2307.15337): an outline, then all points at once, each from its own prompt.

    It follows the authors' code (`outline_batch_scheduler.py` of imagination-research/sot). An answer without
    parts is decoded in sequence, by their router's choice, which costs nothing here.
    """
    parts = [part for parallel in independent_parts(case.document) for part in parallel]
    if len(parts) < 2:
        return _sequential(forced, case)
    skeleton = "\n".join(f"{number}. {part.topic or 'Conclusion'}" for number, part in enumerate(parts, 1))
    request = forced.encode_question(
        "Give only the skeleton of an answer to the following question, not its content: a numbered list of "
        f"points, each of three to five words.\n\n{case.prompt}"
    )
    request += forced.encode(skeleton[:2])  # the first number is given to the model
    outline = forced.encode(skeleton[2:]) + forced.end
    points: list[tuple[Ids, Ids]] = []
    for number, (line, part) in enumerate(zip(skeleton.splitlines(), parts, strict=True), 1):
        context = forced.encode_question(
            f"Write one point, and no other, of the answer to the following question.\n\n{case.prompt}\n\n"
            f"The skeleton of the answer is\n\n{skeleton}\n\nContinue point {number}."
        )
        points.append((context + forced.encode(line), forced.encode(part.text) + forced.end))

    async def work(timed: TimedAnswer) -> int:
        await timed.decode(request, outline)
        async with asyncio.TaskGroup() as tasks:
            for thread, (context, target) in enumerate(points, 1):
                tasks.create_task(timed.decode(context, target, thread=thread))
        return len(outline) + max(len(target) for _, target in points)

    return work


def _apar(forced: ForcedBackend, case: Case) -> Work:
    """APAR (arXiv 2401.06761): a fork for each detail while the parent goes on; nothing is ever joined.

    It follows the authors' code (THUDM/APAR: `fastchat/vs.py` decodes, `data/filter_structured.py` says what
    a detail is): the child has the parent up to its `[Fork]`, and `[Child]`. Where our rules for details
    (`annotate_by_structure`) find none, the answer is written in sequence.
    """
    from pasta_async.training.data.annotate_structure import annotate_by_structure  # needs a Markdown parser

    document = annotate_by_structure(case.document.text, cut="details")
    if not document.promises:
        return _sequential(forced, case)
    fork, child = forced.tags.promise, forced.tags.open_async  # two tokens that text does not have
    prompt = forced.encode_question(case.prompt, plain=False)
    main: list[int] = []
    children: dict[int, Ids] = {}  # by the number of main's tokens before them
    for node in document.nodes:
        if isinstance(node, Promise):
            main.append(fork)
            children[len(main)] = forced.encode(node.text) + forced.end
        elif isinstance(node, Text):
            main += forced.encode(node.text)
    whole = (*main, *forced.end)

    async def work(timed: TimedAnswer) -> int:
        threads = itertools.count(1)
        async with asyncio.TaskGroup() as tasks:

            def start(written: int) -> None:
                if written in children:
                    context = (*prompt, *whole[:written], child)
                    tasks.create_task(timed.decode(context, children[written], thread=next(threads)))

            await timed.decode(prompt, whole, notify=start)
        return max([len(whole), *(written + len(body) for written, body in children.items())])

    return work


def llama_cpp(peer: LlamaCpp) -> Method:
    """llama.cpp writes the same plain text, token by token: the way without this library."""

    def prepare(forced: ForcedBackend, case: Case) -> Work:
        ids = forced.encode_question(case.prompt)
        text = (*forced.encode(case.document.text), *forced.end)

        async def work(timed: TimedAnswer) -> int:
            first_token = await asyncio.to_thread(peer.write, ids, text)
            timed.count(len(text), 0, len(ids))
            timed.costs["first_token"] = first_token
            return len(text)

        return work

    return Method(peer.name, prepare)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(SEQUENTIAL, _sequential),
        Method("pasta", _pasta),
        Method("plan", _plan),
        Method("auto", _auto),
        Method("skeleton", _skeleton),
        Method("apar", _apar),
    )
}
"""All methods by name, in the order of the tables."""


# The command ----------------------------------------------------------------------------------------------


async def measure(
    engine: ForcedEngine,
    cases: Sequence[Case],
    methods: Sequence[Method],
    *,
    passes: int,
    journal: Journal | None = None,
) -> list[Answer]:
    """Write every answer by every method, `passes` times; see `take_turns`.

    Cancelling it cancels the answer under way.
    """
    by_name = {method.name: method for method in methods}
    return await take_turns(
        lambda index, name, number: time_answer(engine, by_name[name], cases[index], number),
        len(cases),
        [*by_name],
        passes=passes,
        journal=journal,
        warm_up=lambda: warm_up(engine, methods),
    )


def summarise(rows: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each method; `times sooner` is seconds in sequence / seconds. Intervals are over prompts."""
    table: list[dict[str, Any]] = []
    names = dict.fromkeys(row.method for row in rows)
    for name in names:
        both = pairs(rows, name, SEQUENTIAL)
        table.append(
            {
                "method": name,
                "prompts": len({answer.prompt for answer, _ in both}),
                "times sooner": speedup(rows, name, SEQUENTIAL),
                "by counting": grouped_mean(
                    (answer.prompt, other.critical_path / answer.critical_path) for answer, other in both
                ),
                "pasta is times sooner": speedup(rows, "pasta", name) if "pasta" in names else None,
                **describe_costs(of_method(rows, name)),
            }
        )
    return table


class MethodSettings(ForcedSettings):
    """Settings of a comparison."""

    llama_cpp: LlamaCppFiles = Field(
        default=(),
        description="GGUF files of models of the same shape and vocabulary, for llama.cpp",
    )
    methods: tuple[MethodName, ...] = Field(
        default=("pasta", "plan", "skeleton", "apar"), description="compared with `sequential`"
    )
    passes: Count = Field(default=3, description="number of times that all of it is done")


async def _run(settings: MethodSettings) -> str:
    documents = settings.read()
    methods = [METHODS[name] for name in dict.fromkeys((SEQUENTIAL, *settings.methods))]
    cpus = settings.threads or available_cores()
    methods += [llama_cpp(LlamaCpp(path, cpus)) for path in settings.llama_cpp]
    async with (
        settings.journal("methods", texts_of(documents)) as journal,
        cold_client(settings.backend, **settings.backend_options) as client,
        open_forced_engine(client.backend, documents) as engine,
    ):
        cases = cases_of(documents)
        rows = await measure(engine, cases, methods, passes=settings.passes, journal=journal)
    return markdown_table(summarise(rows))


main: Command = command(MethodSettings, _run, "methods", __doc__, resumes=True)

if __name__ == "__main__":
    main()
