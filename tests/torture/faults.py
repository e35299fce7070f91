"""Answers of a real SGLang server, when a request of theirs is spoilt, or the server is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path as FilePath
from typing import Any, get_args

import httpx

from pasta_async import Client, Generation, GenerationTimeoutError, Limits, PastaError
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.backends.sglang.backend import ABORT_SECONDS
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
)
from tests.pasta_tiny import examples
from tests.sglang.real_server import free_port, running_server
from tests.torture.engines import SHIPPED, ServerEngine
from tests.torture.measured import Plan
from tests.torture.proxy import FaultProxy, Wire
from tests.torture.spoilt import BEFORE_A_TOKEN, Fault, Kind, Path

AT_ONCE = 4
LANES = 3
"""Clients with a fault each at the same time: most faults are waits."""

SILENCE = 8.0
"""Seconds without a byte after which a server counts as stalled."""

TIMEOUT = 25.0
"""Seconds for an answer."""

LONGEST: dict[Path, int] = {"/generate": 30_000, "/tokenize": 300, "/v1/loads": 300, "/abort_request": 1}
"""Bytes of a reply, about."""

REQUESTS: dict[Path, int] = {"/generate": AT_ONCE * 3, "/tokenize": 2, "/v1/loads": 1, "/abort_request": 1}
"""Of which one is struck."""

NAMED: dict[Kind, type[PastaError]] = {
    "refused": BackendConnectError,
    "dropped": BackendTransportError,
    "html": BackendProtocolError,
    "reset": BackendTransportError,
    "half a body": BackendTransportError,
    "cut": BackendProtocolError,
    "stalled": BackendTimeoutError,
    "slow": GenerationTimeoutError,
    "garbage": BackendProtocolError,
    "duplicated": BackendProtocolError,
    "wrong id": BackendProtocolError,
}
"""What an answer ends with, when it ends by a fault; statuses are told by `BackendStatusError`."""

FINAL = ("status 400", "status 401", "status 404", "stalled", "slow")
"""What is not tried again; the others are, unless a token came."""

OF_ANY_REPLY: tuple[Kind, ...] = (
    *("refused", "dropped", "status 400", "status 503", "html", "reset", "half a body", "cut", "stalled"),
    *("slow", "garbage"),
)

KINDS: list[tuple[Path, Kind, bool]] = [
    *(("/generate", kind, lasting) for kind in get_args(Kind) for lasting in (False, True)),
    *(("/tokenize", kind, lasting) for kind in OF_ANY_REPLY for lasting in (False, True)),
    *(("/v1/loads", kind, True) for kind in OF_ANY_REPLY),
    *(("/abort_request", kind, True) for kind in OF_ANY_REPLY),
]
"""Where and how, and whether it lasts."""

random.Random(0).shuffle(KINDS)  # so that a short campaign has some of each

PROMPTS = [examples()[number].prompt for number in range(AT_ONCE)]


async def answer(client: Client, prompt: str, limits: Limits | None = None) -> Generation:
    """An answer whose form does not depend on what else the server does."""
    return await client.generate(prompt, parallel="always", limits=limits)


class Faults:
    """Trials of some answers at a time, to one of which something happens.

    Args:
        client: Of the server, through the proxy.
        proxy: What spoils requests; it knows the prompts.
        timeout: Seconds for an answer.
    """

    def __init__(self, client: Client, proxy: FaultProxy, timeout: float = TIMEOUT) -> None:
        self.client, self.proxy, self.timeout = client, proxy, timeout
        self.expected: list[Generation] = []
        self.plain: list[Generation] = []
        self.found: dict[str, Counter[str]] = {}
        self.latest = 0.0

    async def learn(self) -> None:
        """What the answers are when nothing goes wrong."""
        plain = [self.client.generate(prompt, baseline=True) for prompt in self.proxy.prompts]
        self.plain = await asyncio.gather(*plain)
        self.expected = await _all(self.client, self.proxy.prompts)

    async def trial(self, fault: Fault, leaves_after: float = 1.0) -> None:
        """One fault: its answer ends with a named error, or right after all, and the others are right.

        Args:
            fault: What goes wrong.
            leaves_after: Seconds after which its answer is broken off, for requests that then come.
        """
        self.proxy.expect(fault)
        numbers = range(len(self.expected))
        ended = await asyncio.gather(*(self._one(number, fault, leaves_after) for number in numbers))
        self.proxy.expect(None)
        errors = [found for found in ended if isinstance(found, PastaError)]
        assert len(errors) <= 1, f"{fault}: {errors}"
        notes = [note for made in ended if isinstance(made, Generation) for note in made.notes]
        self.found.setdefault(str(fault), Counter())[_outcome(fault, errors, notes)] += 1

    async def _one(self, number: int, fault: Fault, leaves_after: float) -> Generation | PastaError:
        """An answer, or what it ended with: the cause, where a thread of it failed."""
        leaves = fault.path == "/abort_request" and number == fault.victim
        timeout = leaves_after if leaves else self.timeout
        limits, began = Limits(timeout=timeout), time.monotonic()
        try:
            # The load is read by an answer that goes by it.
            made = await self.client.generate(
                self.proxy.prompts[number],
                parallel="auto" if fault.path == "/v1/loads" else "always",
                limits=limits,
            )
        except PastaError as error:
            check_part(error.partial, self.expected[number])
            assert error.partial and (error.partial.usage.completion_tokens or not fault.behind_a_token)
            return error.__cause__ if isinstance(error.__cause__, PastaError) else error
        finally:
            late = time.monotonic() - began - timeout
            self.latest = max(self.latest, late)
            assert late < ABORT_SECONDS + 1
        assert made.text == (self.plain if made.width == "plain" else self.expected)[number].text
        return made


def _outcome(fault: Fault, errors: list[PastaError], notes: list[str]) -> str:
    """How the answers ended, which must be as the fault has it (AssertionError)."""
    told = f"{fault} at byte {fault.at}: {errors} {notes}"
    if fault.path == "/abort_request":  # it was broken off, whatever becomes of that request
        assert all(isinstance(error, GenerationTimeoutError) for error in errors), told
    elif errors:
        assert fault.struck and fault.path != "/v1/loads" and _may_end(fault), told
        assert isinstance(errors[0], NAMED.get(fault.kind, BackendStatusError)), told
        if isinstance(errors[0], BackendStatusError):
            assert errors[0].status == int(fault.kind.removeprefix("status ")), told
    else:
        assert not (fault.struck and _must_end(fault)), told
    if not fault.struck:
        return "too late"
    if unknown := [note for note in notes if "load is not known" in note]:
        assert fault.path == "/v1/loads", told
        return f"right, and {len(unknown)} noted"
    return type(errors[0]).__name__ if errors else "right after all"


def _may_end(fault: Fault) -> bool:
    """Whether an answer may end by it."""
    return fault.lasting or fault.kind in FINAL or (fault.replies and fault.path == "/generate")


def _must_end(fault: Fault) -> bool:
    """Whether it must: no try can succeed."""
    if fault.path in ("/v1/loads", "/abort_request") or fault.kind == "slow":
        return False
    if fault.replies and fault.path == "/generate" and fault.at > BEFORE_A_TOKEN:
        return False  # it may come behind the end
    return fault.lasting or fault.kind in FINAL


def check_part(partial: Generation | None, whole: Generation) -> None:
    """Fail unless this is the beginning of an answer: in main, and in each chunk."""
    assert partial is not None and partial.finish_reason == "error"
    texts = [promise.chunk.text if promise.chunk else "" for promise in partial.document.promises]
    wholes = [promise.chunk.text if promise.chunk else "" for promise in whole.document.promises]
    assert all(full.startswith(text) for text, full in zip(texts, wholes, strict=False))
    begun = partial.document.format().split("<async>")[0].removesuffix("</async>")
    assert whole.document.format().startswith(begun)


@asynccontextmanager
async def through_proxy(
    engine: ServerEngine, at_once: int = AT_ONCE, patience: float = 1.0
) -> AsyncGenerator[Faults]:
    """Trials on a server, by a client of their own, whose time-outs are so many times as long."""
    proxy = FaultProxy(engine.url, PROMPTS[:at_once])
    async with proxy.listening() as url, httpx.AsyncClient(transport=Wire(proxy)) as http:
        backend = SGLangBackend(url, timeout=SILENCE * patience, client=http)
        async with Client(backend) as client:
            faults = Faults(client, proxy, TIMEOUT * patience)
            await faults.learn()
            yield faults
        await backend.aclose()


async def inject(plan: Plan, engine: ServerEngine) -> dict[str, Any]:
    """Have every kind of fault in turn strike a request at a byte that is drawn; the figures."""
    own, numbers = asyncio.all_tasks(), plan.numbers()
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(through_proxy(engine)) for _ in range(LANES)]
        async with asyncio.TaskGroup() as group:
            for faults in lanes:
                group.create_task(_try_faults(faults, plan, numbers))
    await engine.backend.aclose()
    await engine.settled(own)
    found = dict[str, Counter[str]]()
    for kind, counts in (item for faults in lanes for item in faults.found.items()):
        found.setdefault(kind, Counter()).update(counts)
    return {
        "faults": sum(counts.total() for counts in found.values()),
        "came of them": sum(found.values(), Counter[str]()),
        "seconds": round(plan.elapsed),
        "seconds over the time-out, at the most": round(max(faults.latest for faults in lanes), 1),
        "of each kind": dict(sorted(found.items())),
    }


async def _try_faults(faults: Faults, plan: Plan, numbers: Iterator[int]) -> None:
    for number in numbers:
        drawn, (path, kind, lasting) = plan.random(number), KINDS[number % len(KINDS)]
        request, victim = drawn.randrange(REQUESTS[path]), drawn.randrange(AT_ONCE)
        longest = min(LONGEST[path], BEFORE_A_TOKEN) if lasting else LONGEST[path]
        at = int(longest ** drawn.random()) - 1
        usual = max(one.elapsed for one in faults.expected)
        fault = Fault(kind, request, at, path, lasting, victim)
        try:
            await faults.trial(fault, leaves_after=drawn.uniform(0.05, usual))
        except Exception as error:
            error.add_note(f"{fault} at byte {at}: --seed {plan.seed} --first {number} --count 1")
            raise


# A server that is lost -----------------------------------------------------------------------------------


async def lose_place(engine: ServerEngine, at_once: int = AT_ONCE) -> Counter[str]:
    """Nothing is left where a server was, while it answers; then it is there again. What comes of that."""
    prompts = PROMPTS[:at_once]
    port, fault = free_port(), Fault("stalled", 0, BEFORE_A_TOKEN * 4)
    async with Client(SGLangBackend(f"http://127.0.0.1:{port}")) as client:
        async with AsyncExitStack() as lost:
            proxy = FaultProxy(engine.url, prompts)
            await lost.enter_async_context(proxy.listening(port))
            expected = await _all(client, prompts)
            proxy.expect(fault)
            found = await _killed(client, fault.strikes.wait(), lost.aclose, expected)
        async with FaultProxy(engine.url, prompts).listening(port):
            assert [one.text for one in await _all(client, prompts)] == [one.text for one in expected]
        await client.backend.aclose()
    return found


async def _all(client: Client, prompts: Sequence[str] = PROMPTS) -> list[Generation]:
    return await asyncio.gather(*(answer(client, prompt) for prompt in prompts))


async def _killed(
    client: Client,
    moment: Awaitable[object],
    kill: Callable[[], Awaitable[None]],
    expected: list[Generation],
) -> Counter[str]:
    """Kill a server while it answers; what becomes of the answers."""
    tasks = [asyncio.create_task(answer(client, prompt)) for prompt in PROMPTS[: len(expected)]]
    await moment
    await kill()
    found = Counter[str]()
    for result, whole in zip(await asyncio.gather(*tasks, return_exceptions=True), expected, strict=True):
        if isinstance(result, PastaError):
            cause = result.__cause__ or result
            assert isinstance(cause, BackendTransportError | BackendProtocolError), repr(result)
            check_part(result.partial, whole)
            found[type(cause).__name__] += 1
        else:
            assert isinstance(result, Generation) and result.text == whole.text, repr(result)
            found["whole"] += 1
    try:
        await answer(client, PROMPTS[0])
    except PastaError as error:
        assert isinstance(error.__cause__ or error, BackendConnectError), repr(error)
    else:
        raise AssertionError("something answered in the place of a server that is gone")
    return found


def kill_server(plan: Plan) -> dict[str, Any]:
    """Kill a server at moments that are drawn, and start it again, for a client that stays; the figures."""
    port, found = free_port(), Counter[str]()

    async def rounds() -> int:
        expected: list[Generation] = []
        kills = 0
        async with Client(f"http://127.0.0.1:{port}") as client:
            for number in plan.numbers():
                with tempfile.TemporaryDirectory() as folder:
                    with running_server(SHIPPED, FilePath(folder) / "log", port=port) as (_, group):
                        expected = expected or await _all(client)
                        again = await _all(client)
                        assert [one.text for one in again] == [one.text for one in expected]
                        moment = plan.random(number).uniform(0, max(one.elapsed for one in again))
                        kill = partial(_kill_group, group)
                        found.update(await _killed(client, asyncio.sleep(moment), kill, expected))
                        kills += 1
        return kills

    return {"kills": asyncio.run(rounds()), **found, "seconds": round(plan.elapsed)}


async def _kill_group(group: int) -> None:
    os.killpg(group, signal.SIGKILL)
