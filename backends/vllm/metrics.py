"""The load of a vLLM server, by its metrics in Prometheus's text form (0.32: v1/metrics/loggers.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pasta_async.backends.http.client import HTTPClient
from pasta_async.errors import BackendProtocolError
from pasta_async.load import EngineLoad, StepTimes

_SAMPLE = re.compile(r"^vllm:(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a server."""

    url: str
    samples: dict[str, list[tuple[dict[str, str], float]]]
    """Labels and values by name, without `vllm:`; one for each engine, or more."""

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of a metric's samples."""
        return [labels for labels, _ in self.samples.get(name, [])]

    def values(self, name: str) -> list[float]:
        """The values of a metric (`BackendProtocolError`: it has none)."""
        if name not in self.samples:
            raise BackendProtocolError(f"{self.url} does not tell vllm:{name}")
        return [value for _, value in self.samples[name]]


async def read_metrics(http: HTTPClient) -> Metrics:
    """Ask a server for its metrics (`BackendError`: it did not tell). Cancelling it leaves nothing behind."""
    url = f"{http.url}/metrics"
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _SAMPLE.findall(await http.text(url)):
        try:
            samples.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(value)))
        except ValueError as error:
            raise BackendProtocolError(f"{url}: vllm:{name} is no number but {value!r}") from error
    return Metrics(url, samples)


class LoadReader:
    """Reads the load of a server, all of its engines together."""

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._counted = [0.0] * 4
        self._steps = StepTimes()

    async def read(self) -> EngineLoad:
        """The load now (`BackendError`: the server did not tell). Cancelling it leaves nothing behind."""
        metrics = await read_metrics(self._http)
        running, queued = (
            int(sum(metrics.values(f"num_requests_{state}"))) for state in ("running", "waiting")
        )
        self._count_steps(metrics)
        doubles_at = self._steps.doubles_at
        caches = metrics.labels("cache_config_info")
        return EngineLoad(
            # It does not tell its --max-num-seqs. A request holds a block at least, and one that waits says
            # that no more can run.
            capacity=running if queued else sum(_blocks(caches)) or running,
            running=running,
            queued=queued,
            kv_use=max(metrics.values("kv_cache_usage_perc")),
            step_doubles_at=None if doubles_at is None else doubles_at * max(1, len(caches)),
        )

    def _count_steps(self, metrics: Metrics) -> None:
        """Count the steps since the last reading, at their mean batch size, unless one of them prefilled.

        Each request that decodes in a step waits as long as that takes: their waits, together and on average,
        tell the step's batch size and its time.
        """
        names = ("iteration_tokens_total_count", "prompt_tokens_total")
        waits = ("inter_token_latency_seconds_count", "inter_token_latency_seconds_sum")
        counted = [sum(metrics.values(name)) for name in (*names, *waits)]
        growth = [new - old for new, old in zip(counted, self._counted, strict=True)]
        self._counted = counted
        steps, prefilled, requests, seconds = growth
        if min(steps, requests, seconds) > 0 and not prefilled:
            batch, step = requests / steps, seconds / requests
            self._steps.add(steps, requests, steps * step, requests * batch, requests * step)


def _blocks(caches: list[dict[str, str]]) -> Iterator[int]:
    """Blocks of the KV cache of each engine, where they are told."""
    for cache in caches:
        if (blocks := cache.get("num_gpu_blocks", "")).isdigit():
            yield int(blocks)
