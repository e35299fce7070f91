"""What parallel decoding gains on the hardware at hand: the real SGLang, a model's shape, given answers.

    python -m pasta_async.evals.hardware --shape 8b --documents documents.jsonl --out h200
    python -m pasta_async.evals.hardware --backend http://127.0.0.1:30000 --model 8b --documents ... --out ...

Speed does not depend on what weights are worth, so random ones of a model's shape do (`random_model`), with
forced answers (`forcing`). The first form makes the model's folder, starts SGLang on it with weights of its
own making, and stops it in the end; the second takes a server that runs already, started with
--enable-custom-logit-processor. Measured are answers one at a time (`methods`) and under load (`load`), and a
decode step with 1, 2, 4, 8 threads on one prefix, against what reading the memory takes at least.

The folder --out keeps the tables (`tables.md`) and the rows, which `pasta_async.evals.report` reads; a run
that was broken off goes on.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import contextmanager
from math import prod
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from pasta_async.backends.sglang.launch import running_server, server_command
from pasta_async.cli.command import Command, Count, command
from pasta_async.evals import load
from pasta_async.evals.documents import DocumentSettings, read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.methods.__main__ import MethodSettings
from pasta_async.evals.methods.__main__ import run as compare_methods
from pasta_async.evals.random_model import make_model, texts_of
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.simulator import take_samples

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Self

    from pasta_async import Backend

__all__ = ["HardwareSettings", "Traffic", "copy_bandwidth", "decode_steps", "main"]

FLAGS = ("--enable-custom-logit-processor", "--enable-cache-report", "--skip-server-warmup")
"""What forced decoding needs, what `by hand` needs, and no request that was not asked for."""


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
        from pasta_async.backends.local.checkpoint import expected_shapes, read_config

        config = read_config(folder)
        shapes = expected_shapes(config)
        numbers = sum(prod(shape) for name, shape in shapes.items() if config.tied or "embed" not in name)
        token = 2 * config.layers * config.kv_heads * config.head_dim
        return cls(width * numbers, width * token, bandwidth)

    def floor(self, threads: int, context: int) -> float:
        """Seconds that a step takes at least, where each thread's attention reads its whole context."""
        return (self.weights + self.token * threads * context) / self.bandwidth


async def decode_steps(
    backend: Backend, traffic: Traffic, *, context: int = 1024, rounds: int = 3
) -> list[dict[str, Any]]:
    """Time decode steps of 1, 2, 4 and 8 threads that share a prefix of `context` tokens; a row for each.

    Cancelling it aborts the requests under way.
    """
    settings = [(count, context) for count in (1, 2, 4, 8)]
    samples = await take_samples(backend, settings, rounds=rounds, shared=True)
    return [
        {
            "threads": one.at_once,
            "context": one.context,
            "step ms": 1000 * one.step,
            "floor ms": 1000 * (floor := traffic.floor(one.at_once, one.context)),
            "step / floor": one.step / floor,
        }
        for one in samples
    ]


def copy_bandwidth(device: str, *, size: int | None = None) -> float:
    """Bytes a second that a device's memory moves in a large copy, read and written ones counted.

    Args:
        device: As torch names it.
        size: Bytes of the copy; None: what suits the device.
    """
    import torch
    from torch.utils.benchmark import Timer

    size = size or (2**30 if device.startswith("cuda") else 2**27)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copied = {"source": source, "target": torch.empty_like(source)}
    timer = Timer("target.copy_(source)", globals=copied, num_threads=torch.get_num_threads())
    return 2 * size / min(timer.blocked_autorange(min_run_time=0.5).times)


class HardwareSettings(DocumentSettings):
    """What is measured, and where."""

    out: Path = Field(description="folder for rows and tables; a run that was broken off goes on from it")
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


@contextmanager
def _server(settings: HardwareSettings, device: str) -> Generator[tuple[str, Path]]:
    """The server that runs, or one that is started; its URL and its model's folder."""
    folder = settings.model or settings.out / f"random-{settings.shape}"
    if settings.backend:
        yield settings.backend, folder
        return
    if not (folder / "config.json").exists():
        texts = texts_of(read_documents(settings.documents, settings.first))
        make_model(folder, texts, shape=settings.shape, vocabulary=settings.vocabulary, weights=False)
    extra = ["--load-format", "dummy", *(["--dtype", "bfloat16"] if device == "cuda" else [])]
    extra += settings.server_arguments.split()
    server = server_command(str(folder), port=settings.port, extra=(*FLAGS, *extra))
    url = f"http://127.0.0.1:{settings.port}"
    with (
        (settings.out / "sglang.log").open("wb") as log,
        running_server(
            server.argv, f"{url}/model_info", timeout=900, output=log, environment=server.environment
        ),
    ):
        yield url, folder


async def _steps(settings: HardwareSettings, url: str, traffic: Traffic) -> str:
    where = {"backend": url, **environment(), **traffic._asdict()}
    async with cold_backend(url) as backend:
        rows = await decode_steps(backend, traffic, context=settings.context)
    write_rows(settings.out / "steps.jsonl", [where, *rows])
    read = f"{traffic.weights / 1e9:.3g} GB of weights at {traffic.bandwidth / 1e9:.3g} GB/s"
    return f"{markdown_table(rows)}\n\nThe floor: {read}, and each thread's context."


def _run(settings: HardwareSettings) -> str:
    settings.out.mkdir(parents=True, exist_ok=True)
    where = environment()
    device = "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
    with _server(settings, device) as (url, model):
        bandwidth = settings.bandwidth * 1e9 if settings.bandwidth else copy_bandwidth(device)
        traffic = Traffic.of(model, width=2 if device == "cuda" else 4, bandwidth=bandwidth)
        forced: dict[str, Any] = {"backend": url, "documents": settings.documents, "first": settings.first}
        forced["methods"] = ("sequential", "pasta")
        alone = MethodSettings(**forced, passes=settings.passes, out=settings.out / "methods.jsonl")
        loaded = load.LoadSettings(
            **forced, at_once=settings.at_once, answers=settings.answers, out=settings.out / "load.jsonl"
        )
        tables = {
            "One answer at a time": compare_methods(alone),
            "Answers under load": load.run(loaded),
            "Decode steps of threads on one prefix": asyncio.run(_steps(settings, url, traffic)),
        }
    sections = [f"## {title}\n\n{table}" for title, table in tables.items()]
    text = "\n\n".join([*sections, f"{model.name}, {device}; {where}"])
    (settings.out / "tables.md").write_text(text + "\n", encoding="utf-8")
    return text


main: Command = command(HardwareSettings, _run, "hardware", __doc__, resumes=True)

if __name__ == "__main__":
    main()
