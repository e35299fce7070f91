"""Answers of a real SGLang server, one of which has a request that is spoilt, or whose server is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import get_args

from pasta_async import Client, Generation, Limits, PastaError
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import (
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
)
from tests.torture.plan import Figures, Plan, draw_prompt
from tests.torture.proxy import Fault, FaultProxy, Kind

SILENCE = 8.0
"""Seconds without a byte after which a server counts as stalled."""

LONGEST = 30_000
"""Bytes of a reply, about."""

NAMED: dict[Kind, type[PastaError]] = {
    "dropped": BackendTransportError,
    "html": BackendProtocolError,
    "reset": BackendTransportError,
    "cut": BackendTransportError,
    "stalled": BackendTimeoutError,
    "garbage": BackendTransportError,  # it breaks the chunks of the reply
}
"""The error that ends an answer, if the fault does; for statuses it is `BackendStatusError`."""


class Faults:
    """Trials of some answers at a time, to one of which something happens.

    Attributes:
        expected: The answers when nothing goes wrong.
        outcomes: For each kind of fault, what became of the answer that it struck.
    """

    def __init__(self, client: Client, proxy: FaultProxy, prompts: Sequence[str]) -> None:
        self._client, self._proxy, self._prompts = client, proxy, prompts
        self.expected: list[Generation] = []
        self.outcomes: dict[str, Counter[str]] = {}

    async def learn(self) -> None:
        """Ask for the answers when nothing goes wrong."""
        self.expected = await asyncio.gather(*map(self._answer, self._prompts))

    async def trial(self, fault: Fault) -> str:
        """One fault: its answer ends with a named error, or is right after all, and the others are right."""
        self._proxy.expect(fault)
        results = await asyncio.gather(*map(self._answer, self._prompts), return_exceptions=True)
        self._proxy.expect(None)
        errors: list[BaseException] = []
        for result, whole in zip(results, self.expected, strict=True):
            if isinstance(result, Generation):
                assert result.text == whole.text, fault
            else:
                errors.append(check_error(result, whole))
        assert len(errors) <= fault.struck.is_set(), (fault, errors)
        for error in errors:
            assert isinstance(error, NAMED.get(fault.kind, BackendStatusError)), (fault, errors)
        outcome = "right" if fault.struck.is_set() else "too late"
        if errors:
            outcome = type(errors[0]).__name__
        self.outcomes.setdefault(fault.kind, Counter())[outcome] += 1
        return outcome

    async def _answer(self, prompt: str) -> Generation:
        """An answer whose form does not depend on what else the server does."""
        return await self._client.generate(prompt, parallel="always", limits=Limits(timeout=60))


def check_error(error: BaseException, whole: Generation) -> BaseException:
    """The cause of a failed answer, which must hold its beginning, in main and in each chunk."""
    assert isinstance(error, PastaError), repr(error)
    assert error.partial is not None and error.partial.finish_reason == "error"
    for promise, full in zip(error.partial.document.promises, whole.document.promises, strict=False):
        if promise.chunk:
            assert full.chunk and full.chunk.text.startswith(promise.chunk.text)
    begun = error.partial.document.format().split("<async>")[0].removesuffix("</async>")
    assert whole.document.format().startswith(begun)
    return error.__cause__ or error


@asynccontextmanager
async def through_proxy(url: str, prompts: Sequence[str]) -> AsyncGenerator[Faults]:
    """Trials on a server, by a client of their own."""
    proxy = FaultProxy(url)
    async with proxy.listening() as address:
        backend = SGLangBackend(address, timeout=SILENCE)
        async with Client(backend) as client:
            faults = Faults(client, proxy, prompts)
            await faults.learn()
            yield faults
        await backend.aclose()


async def inject(plan: Plan, url: str) -> Figures:
    """Have every kind of fault in turn strike a request at a byte that is drawn."""
    kinds: list[Kind] = [*get_args(Kind)]
    async with through_proxy(url, [draw_prompt(plan.random("prompt", k)) for k in range(4)]) as faults:
        for number in plan.numbers():
            drawn = plan.random(number)
            at = int(LONGEST ** drawn.random()) - 1
            fault = Fault(kinds[number % len(kinds)], request=drawn.randrange(12), at=at)
            try:
                await faults.trial(fault)
            except Exception as error:
                error.add_note(f"--seed {plan.seed} --first {number} --count 1")
                raise
        return dict(faults.outcomes)
