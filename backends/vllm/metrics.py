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
    """Labels and value of each sample, by the metric's name without `vllm:`. Each engine has one or more."""

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
        self._counted = [0.0] * 4  # the counters of `_count_steps` at the last reading
        self._steps = StepTimes()

    async def read(self) -> EngineLoad:
        """The load now (`BackendError`: the server did not tell). Cancelling it leaves nothing behind."""
        metrics = await read_metrics(self._http)
        running = int(sum(metrics.values("num_requests_running")))
        queued = int(sum(metrics.values("num_requests_waiting")))
        self._count_steps(metrics)
        doubles_at = self._steps.doubles_at
        caches = metrics.labels("cache_config_info")
        return EngineLoad(
            # vLLM does not tell --max-num-seqs. If requests wait, no more can run than do. Otherwise the KV
            # cache is the limit, in which each request holds at least one block.
            capacity=running if queued else sum(_blocks(caches)) or running,
            running=running,
            queued=queued,
            kv_use=max(metrics.values("kv_cache_usage_perc")),
            step_doubles_at=None if doubles_at is None else doubles_at * max(1, len(caches)),
        )

    def _count_steps(self, metrics: Metrics) -> None:
        """Count the steps since the last reading, at their mean batch size, unless one of them prefilled.

        Every request in a decode step waits for its token as long as the step takes. So the number of waits
        per step is the batch size, and the mean wait is the step's time.
        """
        names = ("iteration_tokens_total_count", "prompt_tokens_total")
        waits = ("inter_token_latency_seconds_count", "inter_token_latency_seconds_sum")
        counted = [sum(metrics.values(name)) for name in (*names, *waits)]
        growth = [new - old for new, old in zip(counted, self._counted, strict=True)]
        self._counted = counted
        steps, prefilled, requests, seconds = growth
        if min(steps, requests, seconds) > 0 and not prefilled:
            batch = requests / steps
            step_seconds = seconds / requests
            self._steps.add(steps, requests, steps * step_seconds, requests * batch, requests * step_seconds)


def _blocks(caches: list[dict[str, str]]) -> Iterator[int]:
    """The number of KV cache blocks of each engine that tells it."""
    for cache in caches:
        if (blocks := cache.get("num_gpu_blocks", "")).isdigit():
            yield int(blocks)
