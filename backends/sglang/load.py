"""The load of an SGLang server: `/v1/loads` (0.5.23: entrypoints/v1_loads.py, managers/load_snapshot.py)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from pasta_async.backends.http.client import HTTPClient
from pasta_async.load import EngineLoad, StepTimes

_NO_MOMENTS = [0.0] * 6


class _Rank(BaseModel):
    """A data-parallel rank."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_running_requests: int
    token_usage: float
    decode_moments: list[float] | None = Field(None, min_length=6, max_length=6)
    """The number of decode steps since the server's start, then sums over these steps: requests,
    microseconds, requests squared, requests x microseconds, tokens."""


class _Loads(BaseModel):
    loads: list[_Rank] = Field(min_length=1)


class LoadReader:
    """Reads the load of a server, or of a router's workers together."""

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._moments: dict[tuple[str, int], list[float]] = {}  # last reading, by server and rank
        self._steps = StepTimes()

    async def read(self, servers: Sequence[str]) -> EngineLoad:
        """The load of all ranks of all servers together.

        Raises:
            BackendError: A server did not tell.

        Cancelling it leaves nothing behind.
        """
        ranks: list[_Rank] = []
        for server in servers:
            loads = (await self._http.ask(_Loads, f"{server}/v1/loads?include=core")).loads
            for number, rank in enumerate(loads):
                steps, requests, micros, squares, products, _ = self._growth((server, number), rank)
                self._steps.add(steps, requests, micros / 1e6, squares, products / 1e6)
            ranks += loads
        doubles_at = self._steps.doubles_at
        return EngineLoad(
            capacity=sum(rank.max_running_requests for rank in ranks),
            running=sum(rank.num_running_reqs for rank in ranks),
            queued=sum(rank.num_waiting_reqs for rank in ranks),
            kv_use=max(rank.token_usage for rank in ranks),
            step_doubles_at=None if doubles_at is None else doubles_at * len(ranks),
        )

    def _growth(self, key: tuple[str, int], rank: _Rank) -> list[float]:
        """The growth of a rank's `decode_moments` since the last reading; all of them after a restart."""
        moments = rank.decode_moments or _NO_MOMENTS
        before = self._moments.get(key, _NO_MOMENTS)
        growth = [new - old for new, old in zip(moments, before, strict=True)]
        self._moments[key] = moments
        return moments if min(growth) < 0 else growth
