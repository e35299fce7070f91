"""How busy an SGLang server is: `/v1/loads` (0.5.23: entrypoints/v1_loads.py, managers/load_snapshot.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic

import anyio
from pydantic import BaseModel, Field

from pasta_async.backends.sglang.client import HTTPClient
from pasta_async.errors import BackendError, BackendStatusError, BackendTimeoutError
from pasta_async.load import EngineLoad, StepTimes

FRESH_SECONDS = 0.25
"""How long a reading serves; no server is asked more often."""

WAIT_SECONDS = 0.5
"""How long a reading may take: an answer waits for it, and does without it then."""

PAUSE_SECONDS = 2.0
"""After a failure nobody asks again for so long."""

_Key = tuple[str, int]
"""A server's URL, and the number of one of its data-parallel ranks."""


class _Rank(BaseModel):
    """A data-parallel rank."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_running_requests: int
    token_usage: float
    decode_moments: list[float] | None = None
    """Decode steps since the server's start; and over them requests, microseconds, requests squared,
    requests x microseconds, tokens."""


class _Loads(BaseModel):
    loads: list[_Rank] = Field(min_length=1)


class LoadReader:
    """Reads the load of a server, or of a router's workers together, for all who want to know it."""

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._lock = anyio.Lock()
        self._latest: EngineLoad | None = None
        self._error: BackendError | None = None
        self._until = 0.0
        self._last: dict[_Key, list[float]] = {}  # the moments of each rank
        self._steps = StepTimes()

    async def read(self, servers: Sequence[str]) -> EngineLoad | None:
        """The latest reading, taken now if it is older than a quarter of a second; None: it has no endpoint.

        Raises:
            BackendError: The latest try failed.

        Cancelling it leaves nothing behind.
        """
        async with self._lock:
            if monotonic() >= self._until:
                await self._read(servers)
        if self._error:
            raise self._error
        return self._latest

    async def _read(self, servers: Sequence[str]) -> None:
        try:
            with anyio.fail_after(WAIT_SECONDS):
                ranks = {
                    (server, number): rank
                    for server in servers
                    for number, rank in enumerate(await self._ranks(server))
                }
            self._latest, self._error = self._together(ranks) if ranks else None, None
        except BackendError as error:
            self._error = error
        except TimeoutError:
            self._error = BackendTimeoutError(f"{servers[0]}/v1/loads said nothing for {WAIT_SECONDS:g} s")
        self._until = monotonic() + (PAUSE_SECONDS if self._error else FRESH_SECONDS)

    async def _ranks(self, server: str) -> list[_Rank]:
        """The ranks of a server; none if it is too old to tell."""
        try:
            return (await self._http.ask(_Loads, f"{server}/v1/loads?include=core")).loads
        except BackendStatusError as error:
            if error.status == 404:
                return []
            raise

    def _together(self, ranks: Mapping[_Key, _Rank]) -> EngineLoad:
        """The load of all ranks together."""
        for key, rank in ranks.items():
            steps, requests, micros, squares, products, _ = self._growth(key, rank)
            self._steps.add(steps, requests, micros / 1e6, squares, products / 1e6)
        doubles_at = self._steps.doubles_at
        return EngineLoad(
            capacity=sum(rank.max_running_requests for rank in ranks.values()),
            running=sum(rank.num_running_reqs for rank in ranks.values()),
            queued=sum(rank.num_waiting_reqs for rank in ranks.values()),
            kv_use=max(rank.token_usage for rank in ranks.values()),
            step_doubles_at=None if doubles_at is None else doubles_at * len(ranks),
        )

    def _growth(self, key: _Key, rank: _Rank) -> list[float]:
        """Decode steps of a rank since the last reading; all of its steps, if it was started since."""
        moments = rank.decode_moments or [0.0] * 6
        growth = [new - old for new, old in zip(moments, self._last.get(key, [0.0] * 6), strict=True)]
        self._last[key] = moments
        return moments if min(growth) < 0 else growth
