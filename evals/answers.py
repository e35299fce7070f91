"""Prompts, answers to them with their costs, and the backends that write them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

from pydantic import Field

from pasta_async import Client, Generation, Limits
from pasta_async.backends import BackendOptions
from pasta_async.backends.options import DType
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.cli.command import CommandSettings, Count
from pasta_async.errors import InvalidRequestError, PromptTooLongError
from pasta_async.evals.report import environment, grouped
from pasta_async.progress import progress
from pasta_async.training.data import corpus
from pasta_async.training.jobs import Journal, for_each
from pasta_async.training.model_digest import weights_of

Item = TypeVar("Item")


class MeasureSettings(CommandSettings):
    """Settings of every measurement."""

    backend: str = Field(description="as for pasta_async.generate")
    sample: Count | None = Field(default=None, description="draw so many of the prompts at random")
    dtype: DType | None = Field(default=None, description="local: float32, int8, ...; see `open_backend`")
    threads: Count | None = Field(default=None, description="local: CPU threads; see `open_backend`")
    out: Path | None = Field(default=None, description="file of answers; an interrupted run goes on from it")

    @property
    def backend_options(self) -> BackendOptions:
        """Options of the backend; only `local:` takes them."""
        given = self.model_dump(include={"dtype", "threads"}, exclude_none=True)
        return cast("BackendOptions", given)

    @asynccontextmanager
    async def journal(
        self, benchmark: str, texts: Iterable[str], *, without: Iterable[str] = ()
    ) -> AsyncGenerator[Journal | None]:
        """The measurement's journal; None without `out`.

        Its first line says what is measured: a run with another one does not go on from it. Each run adds a
        line with its `environment`, time and machine.

        Args:
            benchmark: Name of the command.
            texts: The prompts, and answers that are given; they stand for the files of the settings.
            without: Settings that may change from run to run.

        Raises:
            PastaError: The model is not there, or the file holds something else.
        """
        if self.out is None:
            yield None
            return
        files = {"out", "sample", "prompts", "documents", "data"}
        measured = {
            "benchmark": benchmark,
            **self.model_dump(mode="json", exclude={*files, *without}),
            "texts": corpus.digest((), "\0".join(texts)),
            "weights": await weights_of(self.backend),
        }
        with Journal(self.out, measured, {"environment": environment()}) as journal:
            yield journal


def read_prompts(path: Path, sample: int | None = None) -> list[str]:
    """Prompts of a file, one in each line that is not empty, or a sample of them.

    A file of JSON, by its name, holds objects with an `instruction` or `prompt`, as those of AlpacaEval and
    IFEval.

    Raises:
        InvalidRequestError: There is none, or the file cannot be read.
    """
    if path.suffix in (".jsonl", ".ndjson", ".json", ".gz"):
        return sample_of(corpus.read_prompts(path), sample)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error
    prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    return sample_of(prompts, sample)


def sample_of(items: Sequence[Item], sample: int | None) -> list[Item]:
    """A sample of the items, in their order, the same each time; all, if there are no more or it is None."""
    if sample is None or sample >= len(items):
        return [*items]
    indexes = random.Random(0).sample(range(len(items)), sample)
    return [items[index] for index in sorted(indexes)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: a row of the results."""

    prompt: int
    """Index of its prompt."""
    method: str
    """`baseline` (a plain answer), `parallel`, or the name of another way to write it."""
    number: int = 0
    """Index of the pass, or of the round under a load."""
    seconds: float = 0.0
    """Time from the call to the finished answer; no measure of speed if other answers ran beside it."""
    first_token: float = 0.0
    """Seconds until the first token of whatever is decoded first, an outline for instance."""
    tokens: int = 0
    """Decoded tokens: text, tags, outlines."""
    critical_path: int = 0
    """Tokens that had to be decoded one after another."""
    requests: int = 0
    cached_tokens: int = 0
    """Context tokens that the prefix cache had, over all requests."""
    prefilled_tokens: int = 0
    """Context tokens that were computed."""
    text: str = ""
    written: str = ""
    """The text with its tags."""
    text_tokens: int = 0
    """Tokens of the visible text, without its end."""
    promises: int = 0
    well_formed: bool = True
    """True if it ended by itself, without a fault in its tags."""
    cut: list[int] = field(default_factory=list[int])
    """Numbers of the threads whose chunk the model did not end itself."""
    finish_reason: str = "stop"
    """`length` if a limit ended it: then it says nothing about speed."""
    diagnostics: dict[str, int] = field(default_factory=dict[str, int])
    """Number of times that each code of `pasta_async.lang.Code` was found in it."""
    question: str = ""
    """Text of its prompt."""
    fork_seconds: list[float] = field(default_factory=list[float])
    """Seconds from the first request of each thread but main until its first token."""
    load: str = ""
    """The load that it was written under: `4 at once`, `2 a second`."""
    arrived: float = 0.0
    """Seconds from the beginning of its round under this load until it was asked for."""

    @property
    def ended_by_length(self) -> bool:
        """True if a limit ended it."""
        return self.finish_reason == "length"


async def ask(client: Client, row: Answer, **options: Any) -> Answer:
    """Have the question of a row answered in the form that its method names.

    In parallel a model without tags writes outlines. Options are those of `Client.generate`, which
    says what is raised and what cancelling it does.

    Returns:
        The row with the answer and its costs; an empty answer if the model's context cannot hold the prompt.
    """
    parallel = "always" if (await client.connect()).tags else "outline"
    try:
        answer = await client.generate(
            row.question, baseline=row.method == "baseline", parallel=parallel, **options
        )
    except PromptTooLongError:
        return replace(row, well_formed=False, finish_reason="length")
    return replace(
        row,
        seconds=answer.elapsed,
        text=answer.text,
        written=answer.document.format(),
        text_tokens=answer.text_tokens,
        promises=len(answer.threads) - 1,
        well_formed=answer.well_formed,
        cut=[thread.thread for thread in answer.threads if thread.was_cut],
        finish_reason=answer.finish_reason,
        diagnostics=dict(Counter(str(diagnostic.code) for diagnostic in answer.diagnostics)),
        **costs_of(answer),
    )


def costs_of(answer: Generation) -> dict[str, Any]:
    """Costs of an answer, by their names in an `Answer`."""
    usage = answer.usage
    return {
        "first_token": answer.first_token or answer.elapsed,
        "fork_seconds": [
            thread.first_token - thread.started
            for thread in answer.threads[1:]
            if thread.first_token is not None and thread.started is not None
        ],
        "tokens": usage.completion_tokens,
        "critical_path": answer.critical_path,
        "requests": usage.requests,
        "cached_tokens": usage.cached_tokens,
        "prefilled_tokens": usage.prefilled_tokens,
    }


async def take_turns(
    answer: Callable[[int, str, int], Awaitable[Answer]],
    prompts: int,
    methods: Sequence[str],
    *,
    passes: int = 1,
    together: int = 1,
    journal: Journal | None = None,
    warm_up: Callable[[], Awaitable[None]] | None = None,
) -> list[Answer]:
    """Have every prompt answered by every method, `passes` times.

    Each prompt, and each pass, begins with the next method (two of them go A B B A). Cancelling it cancels
    the answers under way; answers that came are kept.

    Args:
        answer: Has an answer written: to a prompt by its index, by a method, in a pass.
        prompts: Number of prompts.
        methods: Their names.
        passes: Number of passes.
        together: Answers at the same time; more than one is no measure of speed.
        journal: Keeps every answer as it comes; those that it has already are not written again.
        warm_up: Called first, if an answer is left to write.
    """
    # A turn is (pass, prompt, method). Those of the journal are done.
    stored = answers_in(journal.rows) if journal else []
    answers = {(row.number, row.prompt, row.method): row for row in stored}
    order: list[tuple[int, int, str]] = []
    for number in range(passes):
        for prompt in range(prompts):
            # Each prompt begins with the next method, so that none is always first or second.
            first = (number + prompt) % len(methods)
            order += [(number, prompt, method) for method in (*methods[first:], *methods[:first])]
    due = [turn for turn in order if turn not in answers]
    if due and warm_up:
        await warm_up()
    with progress(len(order), "answers", done=len(order) - len(due)) as advance:

        async def write(turn: tuple[int, int, str]) -> None:
            number, prompt, method = turn
            answers[turn] = await answer(prompt, method, number)
            if journal:
                journal.append(asdict(answers[turn]))
            advance()

        await for_each(due, write, together)
    return [answers[turn] for turn in order]


def answers_in(rows: Iterable[Mapping[str, Any]]) -> list[Answer]:
    """The rows of a file of answers but for those that say where it was written."""
    return [Answer(**row) for row in rows if "environment" not in row]


def of_method(answers: Iterable[Answer], method: str) -> list[Answer]:
    """Answers by one method, or in one form, in their order."""
    return [answer for answer in answers if answer.method == method]


def read_answers(path: Path | str) -> tuple[dict[str, Any], list[Answer]]:
    """Read a file of answers that a command wrote.

    Returns:
        Its first line, which says what they are answers to, and the answers: pass by pass, in order of the
        prompts.

    Raises:
        InvalidRequestError: It cannot be read, or holds something else or nothing.
    """
    lines = [row for _, row in corpus.read_lines(path, dict[str, Any])]
    try:
        identity, *rows = lines
        answers = answers_in(rows)
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"{path} is no file of answers: {error!r}") from error
    return identity, sorted(answers, key=lambda answer: (answer.number, answer.prompt))


def in_all_methods(answers: Iterable[Answer], methods: Iterable[str]) -> dict[str, list[Answer]]:
    """Answers by method, each in the same order: those to prompts that all these methods answered in a pass.

    Raises:
        InvalidRequestError: No prompt was answered by all of them.
    """
    names = [*dict.fromkeys(methods)]
    turns: list[Mapping[str, Answer]] = [
        {answer.method: answer for answer in turn}
        for turn in grouped(answers, lambda answer: (answer.number, answer.prompt)).values()
    ]
    shared = [turn for turn in turns if turn.keys() >= {*names}]
    if not shared:
        raise InvalidRequestError(f"no prompt has an answer by every method: {', '.join(names)}")
    return {name: [turn[name] for turn in shared] for name in names}


@asynccontextmanager
async def cold_client(
    url: str, limits: Limits | None = None, **options: Unpack[BackendOptions]
) -> AsyncGenerator[Client]:
    """A connected client whose backend has an empty prefix cache: loaded anew, or flushed; closed at the end.

    Options are those of `open_backend`. `sglang:FOLDER` is started with what forced decoding needs.
    """
    if url.startswith("sglang:"):
        options["server_args"] = {"enable_custom_logit_processor": True}
    async with Client(url, limits=limits, **options) as client:
        await client.connect()
        backend = client.backend
        if isinstance(backend, SGLangBackend):
            async for _ in backend.forward("/flush_cache", {}):
                pass
        yield client
