"""What parallel decoding would gain: loads on a simulated engine, its constants fitted on a real one.

    python -m pasta_async.evals.simulator fit --backend http://127.0.0.1:30000 --out engine.json
    python -m pasta_async.evals.simulator run --engine engine.json --documents docs.jsonl --gpus 8 --rates 50

`fit` times requests at some concurrencies and context lengths, fits the constants, and checks them at others
that it did not fit. With --documents it also plays closed loops of whole answers: what their steps do not
explain is the client's work, fitted on the shorter half of the documents, three at once; the longer half, one
and six at once, tells how far the simulated engine then is from the real one. `run` prints which of the
constants were not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.cli.command import ending
from pasta_async.clock import REAL_CLOCK, RealClock
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.command import count, positive
from pasta_async.evals.documents import read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.load import figures, summarise
from pasta_async.evals.load.__main__ import measure
from pasta_async.evals.load.summary import default_target
from pasta_async.evals.methods import METHODS, Case, open_engine
from pasta_async.evals.records import environment, markdown_table, opened_journal
from pasta_async.evals.simulator.answers import answer_seconds, check_answers, fit_client
from pasta_async.evals.simulator.engine import SimulatedBackend
from pasta_async.evals.simulator.measuring import take_samples
from pasta_async.evals.simulator.model import EngineModel, fit
from pasta_async.evals.simulator.words import CodecTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async import Backend
    from pasta_async.clock import Clock
    from pasta_async.evals.load.driving import Mode
    from pasta_async.evals.simulator.model import Sample
    from pasta_async.lang import Document
    from pasta_async.testing import Tokenizer

__all__ = ["check_samples", "main"]

FITTED = ((1, 4, 16), (64, 512))
CHECKED = ((2, 8), (256,))
"""Requests at once, and tokens of context: every pair of them."""
FITTED_ANSWERS, CHECKED_ANSWERS = 3, (1, 6)
"""Whole answers at once."""


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


class _CpuClock(RealClock):
    """The processor time of this process: on one core that has nothing else to do, so much time passes."""

    def time(self) -> float:
        return time.process_time()


async def _fit(options: argparse.Namespace) -> None:
    embedded = not options.backend.startswith("http")
    if options.cpu_time and not embedded:
        raise InvalidRequestError("--cpu-time is for an engine in this process, local:FOLDER")
    clock = _CpuClock() if options.cpu_time else REAL_CLOCK
    async with cold_backend(options.backend) as backend:
        fitted = await take_samples(backend, [*product(*FITTED)], rounds=options.rounds, clock=clock)
        steps = options.step_tokens or (256 if embedded else 2048)
        model = replace(fit(fitted), embedded=embedded, step_tokens=steps)
        checked = await take_samples(backend, [*product(*CHECKED)], rounds=options.rounds, clock=clock)
        print("steps that were fitted\n\n" + markdown_table(check_samples(model, fitted)))
        print("\nsteps that were not\n\n" + markdown_table(check_samples(model, checked)))
        if options.documents:
            model = await _fit_answers(options, backend, model, clock)
    model.save(options.out)
    print(f"\n{options.out}: constants, ms: {', '.join(_told(model))}")
    print(f"{'processor time, ' if options.cpu_time else ''}{environment()}")


async def _fit_answers(
    options: argparse.Namespace, backend: Backend, model: EngineModel, clock: Clock
) -> EngineModel:
    """The model with the client's work, fitted on the shorter half of the documents, checked on the other."""
    known, others = _halves(read_documents(options.documents, options.first))
    tokenizer, answers = _tokenizer(options), options.answers

    async def simulate(other: EngineModel) -> list[float]:
        simulated = SimulatedBackend(other, tokenizer=tokenizer)
        return await answer_seconds(simulated, known, at_once=FITTED_ANSWERS, answers=answers)

    if tokenizer is None:
        print("\ntokens of answers are counted as words: name the model's folder with --tokenizer")
    measured = await answer_seconds(
        backend, known, at_once=FITTED_ANSWERS, answers=options.answers, clock=clock
    )
    model = await fit_client(model, measured, simulate)
    told = await simulate(model)
    print(f"\nanswers that were fitted, {FITTED_ANSWERS} at once: " + _errors(told, measured))
    rows = list[dict[str, Any]]()
    for at_once in CHECKED_ANSWERS:
        simulated = SimulatedBackend(model, tokenizer=tokenizer)
        rows += await check_answers(
            backend, simulated, others, at_once=at_once, answers=max(answers, 2 * at_once), clock=clock
        )
    print("\nanswers that were not\n\n" + markdown_table(rows))
    return model


def _halves(documents: Mapping[str, Document]) -> tuple[dict[str, Document], dict[str, Document]]:
    """The shorter documents, and the longer ones."""
    if len(documents) < 2:
        raise InvalidRequestError(
            "answers are fitted on some documents and checked on others: give two at least"
        )
    order = sorted(documents, key=lambda prompt: len(documents[prompt].text))
    middle = len(order) // 2
    short, long = ({one: documents[one] for one in half} for half in (order[:middle], order[middle:]))
    return short, long


def _errors(told: Sequence[float], measured: Sequence[float]) -> str:
    return ", ".join(f"{100 * (one / other - 1):+.0f}%" for one, other in zip(told, measured, strict=True))


def _told(model: EngineModel) -> list[str]:
    constants = model.constants().items()
    return [f"{name} {1000 * c.value:.4g}{'' if c.measured else ' (ASSUMED)'}" for name, c in constants]


async def _run(options: argparse.Namespace) -> None:
    model = EngineModel.load(options.engine).with_assumed(_assumptions(options.assume))
    if options.step_tokens:
        model = replace(model, step_tokens=options.step_tokens)
    documents = read_documents(options.documents, options.first)
    cases = [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]
    backend = SimulatedBackend(
        model,
        engines=options.gpus,
        tokenizer=_tokenizer(options),
        max_running=options.max_running,
    )
    loads: list[tuple[Mode, float]] = [("open", rate) for rate in options.rates]
    methods = [METHODS[name] for name in options.methods]
    measured = {
        "benchmark": "simulator",
        "gpus": options.gpus,
        "constants": _told(model),
        "answers": options.answers,
        "step_tokens": model.step_tokens,
        "max_running": options.max_running,
        "embedded": model.embedded,
    }
    async with open_engine(backend, documents, clock=backend.clock) as engine:
        with opened_journal(options.out, measured) as journal:
            blocks = await measure(engine, cases, methods, loads, answers=options.answers, journal=journal)
    target = options.target or default_target(blocks)
    print(f"SIMULATED: {options.gpus} engines; constants, ms: {', '.join(_told(model))}")
    print("assumed besides: KV memory does not end, an answer stays on one engine, whichever it is, and each")
    print("engine has a client process of its own")
    print(f"\nlatency target {target:.3g} s\n\n{markdown_table(summarise(figures(blocks, target)))}")


def _assumptions(words: Sequence[str]) -> dict[str, float]:
    """`name=seconds` pairs."""
    try:
        pairs = [word.split("=") for word in words]
        return {name: float(value) for name, value in pairs}
    except ValueError as error:
        raise InvalidRequestError(
            f"--assume takes constants as name=seconds; got {' '.join(words)}"
        ) from error


def _tokenizer(options: argparse.Namespace) -> Tokenizer | None:
    """The model's own where it is known."""
    backend = getattr(options, "backend", "")
    folder = options.tokenizer or (backend.removeprefix("local:") if backend.startswith("local:") else None)
    return CodecTokenizer.from_folder(folder) if folder else None


@ending()
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
    fitting.add_argument("--rounds", type=count, default=3)
    fitting.add_argument("--answers", type=count, default=6, help="whole answers of each method and load")
    fitting.add_argument(
        "--cpu-time", action="store_true", help="measure processor time: local:FOLDER on a busy machine"
    )
    running = commands.add_parser("run", help="run a load on a simulated engine")
    running.add_argument("--engine", type=Path, required=True, help="what `fit` wrote")
    running.add_argument("--assume", nargs="*", default=[], metavar="NAME=SECONDS", help="other constants")
    running.add_argument("--gpus", type=count, default=1)
    running.add_argument("--rates", type=positive, nargs="+", default=[1.0], help="arrivals a second")
    running.add_argument("--answers", type=count, default=200, help="for each rate and method")
    running.add_argument("--methods", nargs="+", choices=METHODS, default=["sequential", "pasta"])
    running.add_argument("--max-running", type=count, default=256, help="requests in a batch")
    running.add_argument("--target", type=positive, help="seconds; default: twice the lowest rate's median")
    running.add_argument("--out", help="file for the raw figures, of the same form as those of `load`")
    for command in (fitting, running):
        command.add_argument("--documents", required=command is running, help="records with written answers")
        command.add_argument("--first", type=count, help="take so many of them only")
        command.add_argument("--tokenizer", help="a model folder; words and signs are counted without")
        command.add_argument("--step-tokens", type=count, help="prompt tokens in a step")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
