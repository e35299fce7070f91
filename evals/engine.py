"""The embedded engine beside llama.cpp, on the same weights, in one run.

    python -m pasta_async.evals.engine MODEL --out engine.jsonl
    python -m pasta_async.evals.engine MODEL --documents documents.jsonl --answers 40 --out engine.jsonl

MODEL is a Hugging Face folder or a GGUF file. llama.cpp gets its weights as Q8_0 (about the quality of int8)
and Q4_0 (half the bytes, less quality), and is asked through its own low-level API. Every engine runs in a
process of its own and only one works at a time; in each round all are measured once, in an order of its own.

With --documents whole answers are timed too: annotated answers under force, in parallel on the embedded
engine, against llama.cpp writing the same plain text one token after another. MODEL then has to be a folder
with the tag tokens. With --text each engine reads a text, which shows what its number format loses.

It needs the extra `peers`, and a machine that does nothing else.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.documents import read_documents
from pasta_async.evals.llama_cpp import llama_cpp_files
from pasta_async.evals.peers import Peer, open_contestant
from pasta_async.evals.records import environment, markdown_table, opened_journal
from pasta_async.jobs import progress
from pasta_async.training.statistics import estimate, format_estimate, share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pasta_async.evals.peers import RemoteContestant

__all__ = ["EngineSettings", "main"]

_WINDOW = 256  # tokens of a text that are foretold together

Name = Literal["int8", "float32", "Q8_0", "Q4_0"]


class EngineSettings(CommandSettings):
    """What is measured."""

    model: Path = Field(description="a Hugging Face folder or a GGUF file")
    engines: tuple[Name, ...] = Field(
        default=("int8", "float32", "Q8_0", "Q4_0"),
        description="number formats of the embedded engine, types of llama.cpp's",
    )
    threads: tuple[Count, ...] = Field(default=(1, 4, 8, 16), description="how many decode at once")
    prefix: Count = Field(default=256, description="tokens that they share")
    steps: Count = Field(default=32, description="tokens that each decodes")
    rounds: Count = Field(default=5, description="how often everything is measured")
    cpus: int | None = Field(default=None, ge=1, description="CPU threads of an engine; default: all")
    documents: Path | None = Field(default=None, description="annotated answers to be written under force")
    answers: Count = Field(default=40, description="how many of those with promises, drawn at random")
    text: Path | None = Field(default=None, description="a text: how likely its tokens are to each engine")
    tokens: Count = Field(default=20_000, description="how many of them, in windows of 256")
    gguf: Path | None = Field(default=None, description="folder to keep llama.cpp's files in")
    out: Path | None = Field(default=None, description="file for the raw figures")


def _peers(settings: EngineSettings, folder: Path) -> list[Peer]:
    types = [name for name in settings.engines if name.startswith("Q")]
    files = llama_cpp_files(settings.model, settings.gguf or folder, types) if types else {}
    peers: list[Peer] = []
    for name in settings.engines:
        if name in files:
            peers.append(Peer("llama.cpp", name, str(files[name])))
        else:
            peers.append(Peer("local", name, str(settings.model)))
    return peers


def _measure_rounds(
    settings: EngineSettings,
    engines: Mapping[str, RemoteContestant],
    vocabulary: int,
    note: Callable[[dict[str, Any]], None],
) -> None:
    draw = random.Random(0)
    with progress(settings.rounds * len(engines), "rounds") as done:
        for number in range(-1, settings.rounds):  # the first one warms up
            prefix = [draw.randrange(vocabulary) for _ in range(settings.prefix)]
            for name in draw.sample([*engines], len(engines)):
                row = {"engine": name, "round": number}
                first = engines[name].call("first_token", prefix)
                rows = [{**row, "what": "first token", "seconds": first}]
                for count in settings.threads:
                    seconds = engines[name].call("threads", prefix[:count], settings.steps)
                    rows.append({**row, "what": count, "seconds": seconds / settings.steps})
                if number >= 0:
                    for each in rows:
                        note(each)
                    done()


def _measure_answers(
    settings: EngineSettings,
    engines: Mapping[str, RemoteContestant],
    note: Callable[[dict[str, Any]], None],
) -> None:
    assert settings.documents is not None
    written = read_documents(settings.documents)
    documents = {prompt: document for prompt, document in written.items() if document.promises}
    draw = random.Random(0)
    chosen = draw.sample([*documents], min(settings.answers, len(documents)))
    local = _local(engines)
    with progress(len(chosen), "answers") as done:
        for number, prompt in enumerate(chosen):
            ids, answer = engines[local].call("encode", prompt, documents[prompt])
            for name in draw.sample([*engines], len(engines)):
                if name.startswith("local"):
                    seconds = engines[name].call("answer", prompt, documents[prompt])
                else:
                    seconds = engines[name].call("write", ids, answer)
                note({"engine": name, "what": "answer", "round": number, "seconds": seconds})
            done()


def _measure_quality(
    settings: EngineSettings,
    engines: Mapping[str, RemoteContestant],
    note: Callable[[dict[str, Any]], None],
) -> None:
    assert settings.text is not None
    text = settings.text.read_text(encoding="utf-8")
    ids = engines[_local(engines)].call("text_ids", text)[: settings.tokens]
    windows = [ids[start : start + _WINDOW] for start in range(0, len(ids) - 1, _WINDOW)]
    with progress(len(engines), "reading the text") as done:
        for name, engine in engines.items():
            found = engine.call("predict", windows)
            note({"engine": name, "what": "bits", "bits": found.bits, "likeliest": found.likeliest})
            done()


def _local(engines: Mapping[str, RemoteContestant]) -> str:
    """The first embedded engine."""
    found = next((name for name in engines if name.startswith("local")), None)
    if found is None:
        raise InvalidRequestError("one of --engines has to be the embedded one: int8 or float32")
    return found


def _quality(rows: Sequence[dict[str, Any]]) -> str:
    found = {row["engine"]: row for row in rows if row.get("what") == "bits"}
    if not found:
        return ""
    exact = found.get("local float32")
    table = [
        {
            "engine": name,
            "bits a token": f"{row['bits']:.4f}",
            "more than float32": f"{100 * (row['bits'] / exact['bits'] - 1):.2f}%" if exact else None,
            "same choice as float32": format_estimate(
                share([a == b for a, b in zip(row["likeliest"], exact["likeliest"], strict=True)])
            )
            if exact
            else None,
        }
        for name, row in found.items()
    ]
    count = len(next(iter(found.values()))["likeliest"])
    return f"\n\nHow likely a text is ({count:,} tokens):\n\n{markdown_table(table)}"


def _tables(rows: Sequence[dict[str, Any]], settings: EngineSettings) -> str:
    found: dict[tuple[str, Any], list[float]] = {}
    for row in rows:
        if "seconds" in row:
            found.setdefault((row["engine"], row["what"]), []).append(row["seconds"])
    names = list(dict.fromkeys(name for name, _ in found))
    first, whats = names[0], ["first token", *settings.threads]
    speed = [
        {
            "engine": name,
            "load s": found[name, "load"][0],
            "peak memory MB": found[name, "memory"][0] / 2**20,
            "first token ms": _interval([1000 * s for s in found[name, "first token"]]),
            **{
                f"{count} threads, tokens/s": _interval([count / s for s in found[name, count]])
                for count in settings.threads
            },
        }
        for name in names
    ]
    ratios = [
        {
            f"{first} against": name,
            **{_label(what): _ratio(found[first, what], found[name, what]) for what in whats},
            **(
                {"whole answers": _ratio(found[first, "answer"], found[name, "answer"])}
                if (name, "answer") in found
                else {}
            ),
        }
        for name in names[1:]
    ]
    title = "How many times as fast, round by round:"
    return f"{markdown_table(speed)}\n\n{title}\n\n{markdown_table(ratios)}{_quality(rows)}"


def _label(what: object) -> str:
    return "first token" if what == "first token" else f"{what} threads"


def _interval(values: Sequence[float]) -> str:
    return f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    pairs = zip(ours, theirs, strict=True)
    return format_estimate(estimate([b / a for a, b in pairs]), ".2f")


def _run(settings: EngineSettings) -> str:
    cpus = settings.cpus or os.cpu_count() or 1
    measured = settings.model_dump(mode="json", exclude={"out", "gguf"}) | {"benchmark": "engine"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        journal = stack.enter_context(opened_journal(settings.out, measured))
        rows: list[dict[str, Any]] = []

        def note(row: dict[str, Any]) -> None:
            rows.append(row)
            if journal:
                journal.append(row)

        engines: dict[str, RemoteContestant] = {}
        for peer in _peers(settings, folder):
            engine = engines[peer.name] = stack.enter_context(open_contestant(peer, cpus))
            note({"engine": peer.name, "what": "load", "seconds": engine.load_seconds})
        vocabulary = min(engine.call("vocabulary") for engine in engines.values())
        _measure_rounds(settings, engines, vocabulary, note)
        if settings.documents:
            _measure_answers(settings, engines, note)
        if settings.text:
            _measure_quality(settings, engines, note)
        for name, engine in engines.items():
            note({"engine": name, "what": "memory", "seconds": engine.peak_memory()})
        where = environment()
    return (
        f"{_tables(rows, settings)}\n\n{where['cpu']}, {cpus} threads, load {where['load']}, {where['time']}"
    )


main: Command = command(EngineSettings, _run, "engine", __doc__, positional=("model",))

if __name__ == "__main__":
    main()
