"""What parallel decoding gains on the hardware at hand: the real SGLang, a model's shape, given answers.

    python -m pasta_async.evals.hardware --shape 8b --documents documents.jsonl --out h200
    python -m pasta_async.evals.hardware --backend http://127.0.0.1:30000 --model 8b --documents ... --out ...

One run, one table. Speed does not depend on what weights are worth, so random ones of a model's shape do
(`random_model`), with forced answers (`forcing`). The first form makes the model's
folder, starts SGLang on it with weights of its own making, and stops it in the end; the second takes a server
that runs already, started with --enable-custom-logit-processor. Measured are

- forked against sequential answers, one at a time (`speed`) and under load (`load`),
- a decode step with 1, 2, 4, 8 threads on one prefix, against what reading the memory takes at least,
- what the prefix cache had at forks and at joins, and whether to cut main at a promise (`fork_modes`).

Rows are kept in the folder --out, which `pasta_async.evals.report` reads; a run that was broken off goes on.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import httpx
from pydantic import Field, model_validator

from pasta_async.backends.sglang.launch import server_command
from pasta_async.cli.command import run_command
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import BackendError
from pasta_async.evals import fork_modes, load, speed
from pasta_async.evals.commands import Count, DocumentSettings
from pasta_async.evals.documents import document_prompts, documents_digest, read_documents
from pasta_async.evals.engines import cold_backend, cold_client, empty_prefix_cache
from pasta_async.evals.forcing import FORCED_SAMPLING
from pasta_async.evals.methods import METHODS, cases_of, open_engine
from pasta_async.evals.random_model import make_model, texts_of
from pasta_async.evals.records import environment, markdown_table, measurements, opened_journal
from pasta_async.evals.simulator import take_samples

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from typing import Self

    from pasta_async import Backend
    from pasta_async.clock import Clock
    from pasta_async.lang import Document

__all__ = ["HardwareSettings", "Step", "Traffic", "copy_bandwidth", "decode_steps", "main", "started_server"]

FLAGS = ("--enable-custom-logit-processor", "--enable-cache-report", "--skip-server-warmup")
"""What forced decoding needs, what `by hand` needs, and no request that was not asked for."""


@contextmanager
def started_server(
    model: Path, log: Path, *, port: int, extra: Sequence[str] = (), seconds: float = 900
) -> Generator[str]:
    """SGLang's own server, from when it is ready; its URL. It and all that it started is stopped in the end.

    Args:
        model: The model folder.
        log: Where it writes what it has to say.
        port: Port to listen at.
        extra: More of its arguments.
        seconds: How long it may take to be ready.

    Raises:
        BackendError: SGLang is not installed, ended, or was not ready in time.
    """
    command = server_command(str(model), port=port, extra=(*FLAGS, *extra))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process, log, seconds)
        yield url
    finally:
        _stop(process)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BackendError(f"SGLang ended with {process.returncode}: see {log}")
        try:
            if httpx.get(f"{url}/model_info", timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise BackendError(f"SGLang was not ready in {seconds:g} s: see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


class Traffic(NamedTuple):
    """What a decode step has to read."""

    weights: int
    """Bytes of all weights but the embeddings, of which a step needs a row for each thread."""
    token: int
    """Bytes of a token's keys and values."""
    bandwidth: float
    """Bytes a second."""

    @classmethod
    def of(cls, folder: Path, *, width: int, bandwidth: float) -> Traffic:
        """That of a model folder, for numbers of `width` bytes.

        Raises:
            UnsupportedModelError: Its config.json is missing or of another family.
        """
        from math import prod

        from pasta_async.backends.local.checkpoint import expected_shapes, read_config

        config = read_config(folder)
        shapes = expected_shapes(config)
        numbers = sum(prod(shape) for name, shape in shapes.items() if config.tied or "embed" not in name)
        token = 2 * config.layers * config.kv_heads * config.head_dim
        return cls(width * numbers, width * token, bandwidth)

    def floor(self, threads: int, context: int) -> float:
        """Seconds that a step takes at least, where each thread's attention reads its whole context."""
        return (self.weights + self.token * threads * context) / self.bandwidth


class Step(NamedTuple):
    """A decode step of so many threads on one shared prefix."""

    threads: int
    context: int
    """Tokens of the prefix."""
    seconds: float
    """Median between two tokens of a thread."""
    floor: float
    """What reading the memory takes at least."""


async def decode_steps(
    backend: Backend,
    traffic: Traffic,
    *,
    threads: Sequence[int] = (1, 2, 4, 8),
    context: int = 1024,
    rounds: int = 3,
    clock: Clock = REAL_CLOCK,
) -> list[Step]:
    """Time decode steps of so many threads at once that share a prefix.

    Args:
        backend: What is timed; it has to take forced requests.
        traffic: What a step has to read.
        threads: How many at once, each in turn.
        context: Tokens of the prefix that they share.
        rounds: How often, behind one that warms up.
        clock: Measures.

    Cancelling it aborts the requests under way.
    """
    settings = [(count, context) for count in threads]
    samples = await take_samples(backend, settings, rounds=rounds, shared=True, clock=clock)
    return [
        Step(one.at_once, one.context, one.step, traffic.floor(one.at_once, one.context)) for one in samples
    ]


def copy_bandwidth(device: str, *, size: int | None = None, rounds: int = 10) -> float:
    """Bytes a second that a device's memory moves in a large copy, read and written ones counted; the best.

    Args:
        device: As torch names it.
        size: Bytes of the copy; None: what suits the device.
        rounds: Copies.
    """
    import torch

    size = size or (2**30 if device.startswith("cuda") else 2**27)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(rounds):
        _synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        _synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size / best


def _synchronize(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()


class HardwareSettings(DocumentSettings):
    """What is measured, and where."""

    out: Path = Field(description="folder for rows and table; a run that was broken off goes on from it")
    backend: str | None = Field(default=None, description="URL of a server that runs; else one is started")
    model: Path | None = Field(
        default=None, description="its model's folder; without --backend, what is served (made if missing)"
    )
    shape: Literal["tiny", "small", "medium", "1b", "8b"] = Field(
        default="8b", description="of the random model that is made"
    )
    vocabulary: int = Field(default=32768, ge=1, description="its tokens")
    port: int = Field(default=30000, description="where the started server listens")
    server_arguments: str = Field(default="", description="more of SGLang's, in one string")
    bandwidth: float | None = Field(
        default=None, gt=0, description="GB/s of the memory; default: that of a copy"
    )
    passes: int = Field(default=2, ge=1, description="how often each answer is timed alone")
    at_once: tuple[Count, ...] = Field(default=(1, 4, 16, 64), description="answers under way, for the load")
    answers: int = Field(default=32, ge=1, description="for each load, at least")
    context: int = Field(default=1024, ge=1, description="tokens of the prefix in timed steps")

    @model_validator(mode="after")
    def _has_model(self) -> Self:
        if self.backend and not self.model:
            raise ValueError("--backend needs --model, the folder whose config.json tells the model's size")
        return self


class _Measurement:
    """Everything that is measured on one server; what the folder has already is not measured again."""

    def __init__(
        self, settings: HardwareSettings, url: str, documents: Mapping[str, Document], traffic: Traffic
    ) -> None:
        self.settings, self.url, self.documents, self.traffic = settings, url, documents, traffic

    def journal(self, benchmark: str, **identity: object) -> Any:
        measured = {
            "benchmark": benchmark,
            "backend": self.url,
            "forced": True,
            "documents": documents_digest(self.documents),
            **identity,
        }
        return opened_journal(self.settings.out / f"{benchmark}.jsonl", measured)

    async def rows(self) -> list[tuple[str, str]]:
        """A row for each question. Cancelling it aborts what is under way."""
        runs = await self.speed()
        found = [
            (
                f"speed-up of one answer at a time, {row['family']} ({row['prompts']})",
                f"{row['speed-up']}, theoretical {row['theoretical']:.2f}",
            )
            for row in speed.summarise(runs)
        ]
        found += _load_rows(await self.load())
        found += _step_rows(await self.steps(), self.traffic)
        found += _fork_rows(await self.forks())
        return found

    async def speed(self) -> list[speed.Run]:
        prompts = document_prompts(self.documents)
        with self.journal("speed", passes=self.settings.passes) as journal:
            return await speed.measure(
                partial(cold_client, self.url, self.documents),
                prompts,
                warm=prompts[:1],
                passes=self.settings.passes,
                sampling=FORCED_SAMPLING,
                journal=journal,
            )

    async def load(self) -> list[load.Block]:
        methods = [METHODS["sequential"], METHODS["pasta"]]
        loads: list[tuple[load.Mode, float]] = [("closed", count) for count in self.settings.at_once]
        answers = self.settings.answers
        with self.journal("load", answers=answers) as journal:
            async with (
                cold_backend(self.url) as backend,
                open_engine(backend, self.documents, url=self.url) as engine,
            ):
                cases = cases_of(self.documents)
                return await load.measure(engine, cases, methods, loads, answers=answers, journal=journal)

    async def steps(self) -> list[Step]:
        context = self.settings.context
        with self.journal("steps", context=context, bytes=self.traffic[:2]) as journal:
            if known := [Step(**row) for row in measurements(journal)]:
                return known
            async with cold_backend(self.url) as backend:
                steps = await decode_steps(backend, self.traffic, context=context)
            for step in steps:
                journal.append(step._asdict())
            return steps

    async def forks(self) -> list[fork_modes.Answer]:
        prompts = [prompt for prompt in document_prompts(self.documents) if prompt.family == "parallel"]
        with self.journal("fork_modes") as journal:
            known = [fork_modes.Answer(**row) for row in measurements(journal)]
            if known or not prompts:
                return known
            async with cold_client(self.url, self.documents) as client:
                empty = partial(empty_prefix_cache, self.url)
                answers = await fork_modes.measure(client, prompts, sampling=FORCED_SAMPLING, empty=empty)
            for answer in answers:
                journal.append(asdict(answer))
            return answers


def _load_rows(blocks: Sequence[load.Block]) -> Iterator[tuple[str, str]]:
    found = [one for one in load.figures(blocks, load.default_target(blocks)) if one.method == "pasta"]
    levels = " / ".join(f"{one.level:g}" for one in found)
    yield f"sooner than in sequence, {levels} at once", _joined([one.speedup or 0.0 for one in found])
    end = load.pays_up_to(found, "pasta", "closed")
    answers = min(one.answers for one in found)
    name = f"parallel decoding pays (by {answers} answers and more at each load)"
    yield name, "at no load" if end is None else f"up to {end:g} at once"


def _step_rows(steps: Sequence[Step], traffic: Traffic) -> Iterator[tuple[str, str]]:
    threads = " / ".join(str(step.threads) for step in steps)
    name = f"decode step, ms, {threads} threads on {steps[0].context} tokens"
    yield name, _joined([1000 * step.seconds for step in steps])
    floor = f"{traffic.weights / 1e9:.3g} GB of weights at {traffic.bandwidth / 1e9:.3g} GB/s"
    yield f"its floor, ms ({floor})", _joined([1000 * step.floor for step in steps])
    yield "step / floor", _joined([step.seconds / step.floor for step in steps])


def _fork_rows(answers: Sequence[fork_modes.Answer]) -> Iterator[tuple[str, str]]:
    if not answers:
        return
    stream, cut = fork_modes.summarise(answers)
    for name in ("cached at forks", "cached at joins"):
        yield f"context {name}: spawned mid-stream / cut at the promise", f"{stream[name]} / {cut[name]}"
    for name in ("prefilled tokens", "round trips"):
        yield f"{name}: mid-stream / cut", f"{stream[name]:.0f} / {cut[name]:.0f}"
    yield "seconds, cut / mid-stream", cut["seconds / stream"]


def _joined(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)


@contextmanager
def _server(
    settings: HardwareSettings, documents: Mapping[str, Document], device: str
) -> Generator[tuple[str, Path]]:
    """The server that runs, or one that is started; its URL and its model's folder."""
    folder = settings.model or settings.out / f"random-{settings.shape}"
    if settings.backend:
        yield settings.backend, folder
        return
    if not (folder / "config.json").exists():
        vocabulary = settings.vocabulary
        make_model(folder, texts_of(documents), shape=settings.shape, vocabulary=vocabulary, weights=False)
    extra = ["--load-format", "dummy", *(["--dtype", "bfloat16"] if device == "cuda" else [])]
    extra += settings.server_arguments.split()
    with started_server(folder, settings.out / "sglang.log", port=settings.port, extra=extra) as url:
        yield url, folder


def _run(settings: HardwareSettings) -> None:
    documents = read_documents(settings.documents, settings.first)
    settings.out.mkdir(parents=True, exist_ok=True)
    where = environment()
    device = "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
    with _server(settings, documents, device) as (url, model):
        bandwidth = settings.bandwidth * 1e9 if settings.bandwidth else copy_bandwidth(device)
        traffic = Traffic.of(model, width=2 if device == "cuda" else 4, bandwidth=bandwidth)
        rows = asyncio.run(_Measurement(settings, url, documents, traffic).rows())
    table = markdown_table([{"measured": name, "found": found} for name, found in rows])
    text = f"{table}\n\n{model.name}, {len(documents)} documents, {device}; {where}"
    (settings.out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write `table.md`, print it."""
    run_command(
        HardwareSettings, _run, program="hardware", description=__doc__, arguments=arguments, resumes=True
    )


if __name__ == "__main__":
    main()
