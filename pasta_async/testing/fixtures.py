"""Fixtures for pytest: a scripted model on a virtual clock.

In a test module, or in the `conftest.py` at the root of your tests, write
`pytest_plugins = ["pasta_async.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pasta_async.client import Client
from pasta_async.options import Limits
from pasta_async.testing.backend import Fault, ScriptedBackend
from pasta_async.testing.clock import VirtualClock
from pasta_async.testing.script import ScriptSource


class ScriptedClient:
    """Makes clients of models that play a script; they share a virtual clock, and need no closing."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def __call__(
        self,
        script: ScriptSource,
        *,
        latency: float = 0.0,
        thread_latency: Mapping[int, float] | None = None,
        faults: Sequence[Fault] = (),
        limits: Limits | None = None,
    ) -> Client:
        """A client of a model that plays a script. See `ScriptedBackend` for the arguments."""
        backend = ScriptedBackend(
            script, clock=self._clock, latency=latency, thread_latency=thread_latency, faults=faults
        )
        return Client(backend, clock=self._clock, limits=limits)


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """The clock of a test's scripted clients, at 0 s."""
    return VirtualClock()


@pytest.fixture
def scripted_client(virtual_clock: VirtualClock) -> ScriptedClient:
    """Makes clients of models that play a script."""
    return ScriptedClient(virtual_clock)
