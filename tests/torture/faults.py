"""Answers of a real SGLang server, when one of their streams is spoilt, or the server is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

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
from pasta_async.training.synthetic import FAMILIES, sample
from tests.sglang.real_server import free_port, running_server
from tests.torture.engines import ServerEngine
from tests.torture.measured import Plan
from tests.torture.proxy import Fault, FaultProxy, Kind

AT_ONCE = 4
SILENCE = 8.0
"""Seconds without a byte after which a server counts as stalled."""

TIMEOUT = 25.0
"""Seconds for an answer."""

LONGEST = 30_000
"""Bytes of a stream, about."""

EXPECTED: dict[Kind, tuple[type[PastaError], ...]] = {
    "refused": (),
    "status 400": (BackendStatusError,),
    "status 429": (),
    "status 500": (),
    "html": (),
    "reset": (BackendTransportError,),
    "half a body": (BackendTransportError,),
    "cut": (BackendProtocolError,),
    "stalled": (BackendTimeoutError,),
    "slow": (GenerationTimeoutError,),
    "garbage": (BackendProtocolError,),
    "duplicated": (BackendProtocolError,),
    "wrong id": (BackendProtocolError,),
}
"""What an answer may end with. Before its first token a request is sent again, unless that cannot help."""

PROMPTS = [sample(FAMILIES[number % 3], number).prompt for number in range(AT_ONCE)]


async def answer(client: Client, prompt: str, limits: Limits | None = None) -> Generation:
    """An answer whose form does not depend on what else the server does."""
    return await client.generate(prompt, parallel="always", limits=limits)


class Faults:
    """Trials of four answers at a time, in one of whose streams something goes wrong.

    Args:
        client: Of the server, through the proxy.
        proxy: What spoils streams.
    """

    def __init__(self, client: Client, proxy: FaultProxy) -> None:
        self.client, self.proxy = client, proxy
        self.expected: list[Generation] = []
        self.found: dict[str, Counter[str]] = {}
        self.latest = 0.0

    async def learn(self) -> None:
        """What the answers are when nothing goes wrong."""
        self.expected = await asyncio.gather(*(answer(self.client, prompt) for prompt in PROMPTS))

    async def trial(self, fault: Fault) -> None:
        """One fault: its answer ends with a named error, or right after all, and the others are right."""
        self.proxy.expect(fault)
        ended = await asyncio.gather(*(self._one(number) for number in range(AT_ONCE)))
        self.proxy.expect(None)
        errors = [error for error in ended if error]
        counts = self.found.setdefault(fault.kind, Counter())
        if not fault.struck:
            assert not errors, f"{fault}: {errors}"
            counts["too late"] += 1
            return
        assert len(errors) <= 1, f"{fault}: {errors}"
        for error in errors:
            assert isinstance(error, EXPECTED[fault.kind]), f"{fault}: {error!r}"
        counts["right after all" if not errors else type(errors[0]).__name__] += 1

    async def _one(self, number: int) -> PastaError | None:
        """What it ended with: the cause, where a thread of it failed."""
        began, expected = time.monotonic(), self.expected[number]
        try:
            made = await answer(self.client, PROMPTS[number], limits=Limits(timeout=TIMEOUT))
        except PastaError as error:
            check_part(error.partial, expected)
            return error.__cause__ if isinstance(error.__cause__, PastaError) else error
        finally:
            late = time.monotonic() - began - TIMEOUT
            self.latest = max(self.latest, late)
            assert late < ABORT_SECONDS + 1
        assert made.text == expected.text
        return None


def check_part(partial: Generation | None, whole: Generation) -> None:
    """Fail unless this is the beginning of an answer: in main, and in each chunk."""
    assert partial is not None and partial.finish_reason == "error"
    texts = [promise.chunk.text if promise.chunk else "" for promise in partial.document.promises]
    wholes = [promise.chunk.text if promise.chunk else "" for promise in whole.document.promises]
    assert all(full.startswith(text) for text, full in zip(texts, wholes, strict=False))
    begun = partial.document.format().split("<async>")[0].removesuffix("</async>")
    assert whole.document.format().startswith(begun)


@asynccontextmanager
async def through_proxy(engine: ServerEngine) -> AsyncGenerator[Faults]:
    """Trials on a server; in the end nothing of their answers may be left."""
    own, proxy = asyncio.all_tasks(), FaultProxy(engine.url)
    async with proxy.listening() as url:
        backend = SGLangBackend(url, timeout=SILENCE)
        async with Client(backend) as client:
            faults = Faults(client, proxy)
            await faults.learn()
            yield faults
        await backend.aclose()
    await engine.backend.aclose()
    await engine.settled(own)


async def inject(plan: Plan, engine: ServerEngine) -> dict[str, Any]:
    """Have every kind of fault in turn strike a request at a byte that is drawn; the figures."""
    async with through_proxy(engine) as faults:
        for number in plan.numbers():
            drawn, kinds = plan.random(number), get_args(Kind)
            at = int(LONGEST ** drawn.random()) - 1
            await faults.trial(Fault(kinds[number % len(kinds)], drawn.randrange(AT_ONCE * 3), at))
    return {
        "faults": sum(counts.total() for counts in faults.found.values()),
        **faults.found,
        "seconds": round(plan.elapsed),
        "seconds over the time-out, at the most": round(faults.latest, 1),
    }


async def _killed(client: Client, group: int, moment: float, expected: list[Generation]) -> Counter[str]:
    """Kill a server while it answers; what becomes of the answers."""
    tasks = [asyncio.create_task(answer(client, prompt)) for prompt in PROMPTS]
    await asyncio.sleep(moment)
    os.killpg(group, signal.SIGKILL)
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
    return found


def kill_server(plan: Plan) -> dict[str, Any]:
    """Kill a server at moments that are drawn, and start it again, for a client that stays; the figures."""
    import pasta_async

    model = Path(pasta_async.__file__).parent / "models" / "pasta-tiny"
    port, found, kills = free_port(), Counter[str](), 0

    async def rounds() -> None:
        nonlocal kills
        expected: list[Generation] = []
        async with Client(f"http://127.0.0.1:{port}") as client:
            for number in plan.numbers():
                with tempfile.TemporaryDirectory() as folder:
                    with running_server(model, Path(folder) / "log", port=port) as (_, group):
                        expected = expected or await asyncio.gather(
                            *(answer(client, prompt) for prompt in PROMPTS)
                        )
                        again = await asyncio.gather(*(answer(client, prompt) for prompt in PROMPTS))
                        assert [one.text for one in again] == [one.text for one in expected]
                        moment = plan.random(number).uniform(0, max(one.elapsed for one in again))
                        found.update(await _killed(client, group, moment, expected))
                        kills += 1

    asyncio.run(rounds())
    return {"kills": kills, **found, "seconds": round(plan.elapsed)}
