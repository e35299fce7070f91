"""The embedded engine beside llama.cpp and transformers, on the same weights, in one run.

    python -m pasta_async.evals.engine MODEL --out engine.jsonl

MODEL is a Hugging Face folder or a GGUF file. llama.cpp gets its weights as Q8_0 (about the quality of int8)
and Q4_0 (half the bytes, less quality), and is asked through its own low-level API. All get token ids and
choose the likeliest token, so they do the same work. Every engine runs in a process of its own and only one
works at a time; in each round all are measured once, in an order of its own. Whole answers beside llama.cpp's
are measured by `speed --llama-cpp`.

It needs the extra `peers`, and a machine that does nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.llama_cpp import llama_cpp_files
from pasta_async.evals.peers import Peer, RemoteEngine, open_engine_process
from pasta_async.evals.records import (
    cores,
    environment,
    grouped,
    markdown_table,
    measurements,
    opened_journal,
)
from pasta_async.jobs import progress
from pasta_async.training.statistics import estimate, format_estimate

Name = Literal["int8", "float32", "Q8_0", "Q4_0", "transformers"]
Row = dict[str, Any]


class EngineSettings(CommandSettings):
    """What is measured."""

    model: Path = Field(description="a Hugging Face folder or a GGUF file")
    engines: tuple[Name, ...] = Field(
        default=("int8", "float32", "Q8_0", "Q4_0", "transformers"),
        description="number formats of the embedded engine, types of llama.cpp's, or transformers (float32)",
    )
    threads: tuple[Count, ...] = Field(default=(1, 2, 4, 8, 16), description="how many decode at once")
    prefix: Count = Field(default=256, description="tokens that they share")
    steps: Count = Field(default=32, description="tokens that each decodes")
    rounds: Count = Field(default=10, description="how often everything is measured")
    cpus: int | None = Field(default=None, ge=1, description="CPU threads of an engine; default: all")
    out: Path | None = Field(default=None, description="file for the raw figures")


def _peers(settings: EngineSettings, folder: Path) -> list[Peer]:
    types = [name for name in settings.engines if name.startswith("Q")]
    files = llama_cpp_files(settings.model, folder, types) if types else {}
    model = str(settings.model)

    def peer(name: Name) -> Peer:
        if name == "transformers":
            return Peer(name, "float32", model)
        return Peer("llama.cpp", name, str(files[name])) if name in files else Peer("local", name, model)

    return [peer(name) for name in settings.engines]


def _measure(settings: EngineSettings, engines: Mapping[str, RemoteEngine]) -> Generator[Row]:
    vocabulary = min(engine.call("vocabulary") for engine in engines.values())
    draw = random.Random(0)
    with progress(settings.rounds * len(engines), "rounds") as done:
        for number in range(-1, settings.rounds):  # the first one warms up
            prefix = draw.choices(range(vocabulary), k=settings.prefix)
            starts = draw.choices(range(vocabulary), k=max(settings.threads))
            for name in draw.sample([*engines], len(engines)):
                found: dict[str | int, float] = {"first token": engines[name].call("first_token", prefix)}
                for count in settings.threads:
                    seconds = engines[name].call("threads", starts[:count], settings.steps)
                    found[count] = seconds / settings.steps
                if number >= 0:
                    done()
                    for what, seconds in found.items():
                        yield {"engine": name, "what": what, "round": number, "seconds": seconds}
    for name, engine in engines.items():
        yield {"engine": name, "what": "load", "seconds": engine.load_seconds}
        yield {"engine": name, "what": "memory", "bytes": engine.peak_memory()}


def _tables(rows: Sequence[Row], threads: Sequence[int]) -> list[list[Row]]:
    """What each engine takes, and how many times as fast as each other one the first is, round by round."""
    groups = grouped(rows, lambda row: (row["engine"], row["what"]))
    found = {
        (engine, what): [float(row["bytes" if what == "memory" else "seconds"]) for row in own]
        for (engine, what), own in groups.items()
    }
    first, *others = dict.fromkeys(name for name, _ in found)
    whats: dict[str | int, str] = {"first token": "first token", **{n: f"{n} threads" for n in threads}}
    speed = [
        {
            "engine": name,
            "load s": found[name, "load"][0],
            "peak memory MB": found[name, "memory"][0] / 2**20,
            "first token ms": _median([1000 * s for s in found[name, "first token"]]),
            **{f"{n} threads, tokens/s": _median([n / s for s in found[name, n]]) for n in threads},
        }
        for name in (first, *others)
    ]
    ratios = [
        {
            f"{first} is so many times as fast as": name,
            **{label: _ratio(found[first, what], found[name, what]) for what, label in whats.items()},
        }
        for name in others
    ]
    return [speed, ratios]


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratios = [other / one for one, other in zip(ours, theirs, strict=True)]
    return format_estimate(estimate(ratios), ".2f")


def _run(settings: EngineSettings) -> str:
    cpus = settings.cpus or cores()
    measured = settings.model_dump(mode="json", exclude={"out"}) | {"benchmark": "engine"}
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        journal = stack.enter_context(opened_journal(settings.out, measured))
        if measurements(journal):
            raise InvalidRequestError(
                f"{settings.out} has figures: a run measures all, into a file of its own"
            )
        peers = _peers(settings, folder)
        engines = {peer.name: stack.enter_context(open_engine_process(peer, cpus)) for peer in peers}
        for row in _measure(settings, engines):
            rows.append(row)
            if journal:
                journal.append(row)
    tables = map(markdown_table, _tables(rows, settings.threads))
    return "\n\n".join([*tables, f"{cpus} threads; {environment()}"])


main: Command = command(EngineSettings, _run, "engine", __doc__, positional=("model",))

if __name__ == "__main__":
    main()
