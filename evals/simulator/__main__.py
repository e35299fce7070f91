"""What parallel decoding would gain: loads on a simulated engine, its constants fitted on a real one.

    python -m pasta_async.evals.simulator fit --backend http://127.0.0.1:30000 --out engine.json
    python -m pasta_async.evals.simulator run --engine engine.json --documents docs.jsonl --gpus 8 --rates 50

`fit` times requests at some concurrencies and context lengths, fits the constants, and checks them at others
that it did not fit; with --documents it also plays a closed loop of whole answers on the real engine and on
the simulated one, and reports how far they are apart. `run` prints which of the constants were not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequest
from pasta_async.evals.documents import read_documents
from pasta_async.evals.engines import clock_of, cold_backend
from pasta_async.evals.load import drive, figures, summarise
from pasta_async.evals.load.__main__ import measure
from pasta_async.evals.load.summary import default_target
from pasta_async.evals.methods import METHODS, Case, open_engine, play
from pasta_async.evals.records import environment, markdown_table, opened_journal
from pasta_async.evals.simulator.engine import SimulatedBackend
from pasta_async.evals.simulator.measuring import take_samples
from pasta_async.evals.simulator.model import EngineModel, fit
from pasta_async.evals.simulator.words import CodecTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async import Backend
    from pasta_async.backends.scripted import Tokenizer
    from pasta_async.evals.load.driving import Mode
    from pasta_async.evals.simulator.model import Sample
    from pasta_async.lang import Document

__all__ = ["check_answers", "check_samples", "main"]

FITTED = ((1, 4, 16), (64, 512))
CHECKED = ((2, 8), (256,))
"""Requests at once, and tokens of context: every pair of them."""


def check_samples(model: EngineModel, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Steps as they were measured and as the model has them: a row for each sample."""
    rows = list[dict[str, Any]]()
    for sample in samples:
        told = model.seconds(sample.at_once, sample.tokens, 0)
        rows.append(
            {
                "at once": sample.at_once,
                "context": sample.context,
                "step ms, measured": 1000 * sample.step,
                "model": 1000 * told,
                "error": f"{100 * (told / sample.step - 1):+.0f}%",
            }
        )
    return rows


async def check_answers(
    real: Backend,
    simulated: SimulatedBackend,
    documents: Mapping[str, Document],
    *,
    methods: Sequence[str] = ("sequential", "pasta"),
    at_once: int = 3,
    answers: int = 6,
) -> list[dict[str, Any]]:
    """Median latency of the same closed loop on the real engine and on the simulated one, for each method.

    Cancelling it aborts the answers under way.
    """
    cases = [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]
    asked = [cases[number % len(cases)] for number in range(answers)]
    rows = list[dict[str, Any]]()
    for name in methods:
        seconds = list[float]()
        for backend in (real, simulated):
            async with open_engine(backend, documents, clock=clock_of(backend)) as engine:
                await play(engine, METHODS[name], cases[0])  # warm
                block = await drive(engine, METHODS[name], asked, mode="closed", level=at_once)
            seconds.append(median(answer.seconds for answer in block.answers))
        rows.append(
            {
                "method": name,
                "at once": at_once,
                "seconds, measured": seconds[0],
                "simulated": seconds[1],
                "error": f"{100 * (seconds[1] / seconds[0] - 1):+.0f}%",
            }
        )
    return rows


async def _fit(options: argparse.Namespace) -> None:
    async with cold_backend(options.backend) as backend:
        fitted = await take_samples(backend, [*product(*FITTED)], rounds=options.rounds)
        model = fit(fitted)
        model.save(options.out)
        print("constants, ms: " + ", ".join(_told(model)))
        checked = await take_samples(backend, [*product(*CHECKED)], rounds=options.rounds)
        print("\nsteps that were fitted\n\n" + markdown_table(check_samples(model, fitted)))
        print("\nsteps that were not\n\n" + markdown_table(check_samples(model, checked)))
        if options.documents:
            documents = read_documents(options.documents, options.first)
            simulated = SimulatedBackend(
                model,
                tokenizer=_tokenizer(options),
                shares_running=options.shares_running,
                step_tokens=options.step_tokens,
            )
            print("\nwhole answers\n\n" + markdown_table(await check_answers(backend, simulated, documents)))
    print(f"\n{environment()}")


def _told(model: EngineModel) -> list[str]:
    names = ("step", "sequence", "context", "prefill", "round_trip")
    pairs = ((name, getattr(model, name)) for name in names)
    return [f"{name} {1000 * c.value:.4g}{'' if c.measured else ' (ASSUMED)'}" for name, c in pairs]


async def _run(options: argparse.Namespace) -> None:
    model = EngineModel.load(options.engine).with_assumed(_assumptions(options.assume))
    documents = read_documents(options.documents, options.first)
    cases = [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]
    backend = SimulatedBackend(
        model,
        engines=options.gpus,
        tokenizer=_tokenizer(options),
        shares_running=options.shares_running,
        step_tokens=options.step_tokens,
        max_running=options.max_running,
    )
    loads: list[tuple[Mode, float]] = [("open", rate) for rate in options.rates]
    methods = [METHODS[name] for name in options.methods]
    measured = {
        "benchmark": "simulator",
        "gpus": options.gpus,
        "constants": _told(model),
        "answers": options.answers,
        "step_tokens": options.step_tokens,
        "max_running": options.max_running,
        "shares_running": options.shares_running,
    }
    async with open_engine(backend, documents, clock=backend.clock) as engine:
        with opened_journal(options.out, measured) as journal:
            blocks = await measure(engine, cases, methods, loads, answers=options.answers, journal=journal)
    target = options.target or default_target(blocks)
    print(f"SIMULATED: {options.gpus} engines; constants, ms: {', '.join(_told(model))}")
    print("assumed besides: KV memory does not end, and an answer stays on one engine, whichever it is")
    print(f"\nlatency target {target:.3g} s\n\n{markdown_table(summarise(figures(blocks, target)))}")


def _assumptions(words: Sequence[str]) -> dict[str, float]:
    """`name=seconds` pairs."""
    try:
        pairs = [word.split("=") for word in words]
        return {name: float(value) for name, value in pairs}
    except ValueError as error:
        raise InvalidRequest(f"--assume takes constants as name=seconds; got {' '.join(words)}") from error


def _tokenizer(options: argparse.Namespace) -> Tokenizer | None:
    return CodecTokenizer.from_folder(options.tokenizer) if options.tokenizer else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and check an engine model, or run a load on one."""
    options = _options(arguments)
    asyncio.run(_fit(options) if options.command == "fit" else _run(options))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    fitting = commands.add_parser("fit", help="fit the constants on a real engine, and check them")
    fitting.add_argument("--backend", required=True, help="local:FOLDER, or the URL of an SGLang server")
    fitting.add_argument("--out", type=Path, required=True, help="file for the constants")
    fitting.add_argument("--rounds", type=int, default=3)
    running = commands.add_parser("run", help="run a load on a simulated engine")
    running.add_argument("--engine", type=Path, required=True, help="what `fit` wrote")
    running.add_argument("--assume", nargs="*", default=[], metavar="NAME=SECONDS", help="other constants")
    running.add_argument("--gpus", type=int, default=1)
    running.add_argument("--rates", type=float, nargs="+", default=[1.0], help="arrivals a second")
    running.add_argument("--answers", type=int, default=200, help="for each rate and method")
    running.add_argument("--methods", nargs="+", choices=METHODS, default=["sequential", "pasta"])
    running.add_argument("--max-running", type=int, default=256, help="requests in a batch")
    running.add_argument("--target", type=float, help="seconds; default: twice the median of the lowest rate")
    running.add_argument("--out", help="file for the raw figures, of the same form as those of `load`")
    for command in (fitting, running):
        command.add_argument("--documents", required=command is running, help="records with written answers")
        command.add_argument("--first", type=int, help="take so many of them only")
        command.add_argument("--tokenizer", help="a model folder; words and signs are counted without")
        command.add_argument("--step-tokens", type=int, default=2048, help="prompt tokens in a step")
        command.add_argument(
            "--shares-running", action="store_true", help="forks find running KV, as on local:"
        )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
