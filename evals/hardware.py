"""What parallel decoding gains on the hardware at hand: the real SGLang, a model's shape, given answers.

    python -m pasta_async.evals.hardware --shape 8b --documents documents.jsonl --out h200
    python -m pasta_async.evals.hardware --backend http://127.0.0.1:30000 --documents ... --out ...

Speed does not depend on what weights are worth, so random ones of a model's shape do (`random_model`), with
forced answers (`forcing`). The first form makes the model's folder, starts SGLang on it with weights of its
own making, and stops it in the end; the second takes a server that runs already, started with
--enable-custom-logit-processor. Measured are answers one at a time (`methods`) and under load (`load`).

The folder --out keeps the tables (`tables.md`) and the rows, which `pasta_async.evals.report` reads; a run
that was broken off goes on.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pasta_async.backends.sglang.launch import running_server, server_command
from pasta_async.cli.command import Command, Count, command
from pasta_async.evals import load
from pasta_async.evals.documents import DocumentSettings, read_documents
from pasta_async.evals.methods.__main__ import MethodSettings
from pasta_async.evals.methods.__main__ import run as compare_methods
from pasta_async.evals.random_model import make_model, texts_of
from pasta_async.evals.records import environment

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["HardwareSettings", "main"]

FLAGS = ("--enable-custom-logit-processor", "--enable-cache-report", "--skip-server-warmup")
"""What forced decoding needs, what `by hand` needs, and no request that was not asked for."""


class HardwareSettings(DocumentSettings):
    """What is measured, and where."""

    out: Path = Field(description="folder for rows and tables; a run that was broken off goes on from it")
    backend: str | None = Field(default=None, description="URL of a server that runs; else one is started")
    shape: Literal["tiny", "small", "medium", "1b", "8b"] = Field(
        default="8b", description="of the random model that is made"
    )
    vocabulary: int = Field(default=32768, ge=1, description="its tokens")
    port: int = Field(default=30000, description="where the started server listens")
    server_arguments: str = Field(default="", description="more of SGLang's, in one string")
    passes: int = Field(default=2, ge=1, description="how often each answer is timed alone")
    at_once: tuple[Count, ...] = Field(default=(1, 4, 16, 64), description="answers under way, for the load")
    answers: int = Field(default=32, ge=1, description="for each load, at least")


@contextmanager
def _server(settings: HardwareSettings, device: str) -> Generator[str]:
    """The URL of the server that runs, or of one that is started."""
    if settings.backend:
        yield settings.backend
        return
    folder = settings.out / f"random-{settings.shape}"
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
        yield url


def _run(settings: HardwareSettings) -> str:
    settings.out.mkdir(parents=True, exist_ok=True)
    where = environment()
    device = "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
    with _server(settings, device) as url:
        forced: dict[str, Any] = {"backend": url, "documents": settings.documents, "first": settings.first}
        forced["methods"] = ("sequential", "pasta")
        alone = MethodSettings(**forced, passes=settings.passes, out=settings.out / "methods.jsonl")
        loaded = load.LoadSettings(
            **forced, at_once=settings.at_once, answers=settings.answers, out=settings.out / "load.jsonl"
        )
        tables = {
            "One answer at a time": compare_methods(alone),
            "Answers under load": load.run(loaded),
        }
    sections = [f"## {title}\n\n{table}" for title, table in tables.items()]
    text = "\n\n".join([*sections, f"{settings.backend or settings.shape}, {device}; {where}"])
    (settings.out / "tables.md").write_text(text + "\n", encoding="utf-8")
    return text


main: Command = command(HardwareSettings, _run, "hardware", __doc__, resumes=True)

if __name__ == "__main__":
    main()
