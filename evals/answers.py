"""Prompts, answers to them with their costs, and the backends that write them."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Unpack

import httpx
from pydantic import Field

from pasta_async import Client, Sampling
from pasta_async.backends import BackendOptions
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import BackendError, InvalidRequestError, PromptTooLongError
from pasta_async.evals.report import measurements
from pasta_async.jobs import Journal, for_each, progress
from pasta_async.training.data import corpus
from pasta_async.training.sample import answer_seed

Form = Literal["original", "baseline", "parallel"]
"""Another model's plain answer, the model's own, or one that it writes in parallel."""
FORMS: tuple[Form, Form] = ("baseline", "parallel")

Item = TypeVar("Item")
Drawn = Annotated[int | None, Field(ge=1, description="draw so many of them at random")]
"""Number of prompts or documents that a command takes of a file; None: all."""
RawRows = Annotated[Path | None, Field(description="file of raw rows; an interrupted run goes on from it")]


def read_prompts(path: Path, sample: int | None = None) -> list[str]:
    """Prompts of a file, one in each line that is not empty, or a sample of them.

    A file named .jsonl holds objects with an `instruction` or `prompt`, as those of AlpacaEval and IFEval.

    Raises:
        InvalidRequestError: There is none, or the file cannot be read.
    """
    if path.suffix == ".jsonl":
        prompts = corpus.read_prompts(path)
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"{path} cannot be read: {error}") from error
        prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    return drawn(prompts, sample)


def drawn(items: Sequence[Item], sample: int | None) -> list[Item]:
    """A sample of the items, in their order, the same each time; all, if there are no more or it is None."""
    if sample is None or sample >= len(items):
        return [*items]
    indexes = random.Random(0).sample(range(len(items)), sample)
    return [items[index] for index in sorted(indexes)]


def digest(texts: Iterable[str]) -> str:
    """24 hexadecimal digits that stand for some texts and their order."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: a row of the results."""

    prompt: int
    """Index of its prompt."""
    method: str
    """A `Form`, or the name of another way to write it."""
    number: int = 0
    """Index of the pass."""
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
    """True if it ended by itself, without a diagnostic."""
    cut: list[int] = field(default_factory=list[int])
    """Numbers of the threads whose chunk the model did not end itself."""
    finish_reason: str = "stop"
    """`length` if a limit ended it: then it says nothing about speed."""
    diagnostics: dict[str, int] = field(default_factory=dict[str, int])
    """Number of times that each code of `pasta_async.lang.Code` was found in it."""
    question: str = ""
    """Text of its prompt."""

    @property
    def ended_by_length(self) -> bool:
        """True if a limit ended it."""
        return self.finish_reason == "length"


async def ask(client: Client, row: Answer, **options: Any) -> Answer:
    """Have the question of a row answered, in parallel or plainly as its method says.

    In parallel a model that was not trained writes the items of its lists (`parallel="outline"`). Options are
    those of `Client.generate`, which says what is raised and what cancelling it does.

    Returns:
        The row with the answer and its costs; an empty answer if the model's context cannot hold the prompt.
    """
    parallel = "always" if (await client.connect()).tags else "outline"
    try:
        answer = await client.generate(
            row.question, baseline=row.method != "parallel", parallel=parallel, **options
        )
    except PromptTooLongError:
        return replace(row, well_formed=False, finish_reason="length")
    usage = answer.usage
    return replace(
        row,
        seconds=answer.elapsed,
        first_token=answer.threads[0].first_token or answer.elapsed,
        tokens=usage.completion_tokens,
        critical_path=answer.critical_path,
        requests=usage.requests,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        text=answer.text,
        written=answer.document.format(),
        text_tokens=answer.text_tokens,
        promises=len(answer.threads) - 1,
        well_formed=answer.well_formed,
        cut=[thread.thread for thread in answer.threads if thread.was_cut],
        finish_reason=answer.finish_reason,
        diagnostics=dict(Counter(str(diagnostic.code) for diagnostic in answer.diagnostics)),
    )


async def answer_all(
    client: Client,
    prompts: Sequence[str],
    journal: Journal,
    *,
    sampling: Sampling,
    together: int,
    forms: Sequence[Form] = FORMS,
    passes: int = 1,
) -> list[Answer]:
    """Every prompt answered in each form, `passes` times; see `take_turns` and `ask`.

    Every answer has its own seed, made of the sampling's, the prompt and the pass.
    """
    seeded = sampling.temperature > 0 and (await client.connect()).honours_seeds

    async def answer(index: int, form: str, number: int) -> Answer:
        seed = answer_seed(sampling.seed or 0, prompts[index], number) if seeded else None
        row = Answer(index, form, number, question=prompts[index])
        seeded_sampling = sampling.model_copy(update={"seed": seed})
        return await ask(client, row, sampling=seeded_sampling, whole_chunks=True)  # nothing is streamed

    return await take_turns(
        lambda: nullcontext(answer), len(prompts), forms, passes=passes, together=together, journal=journal
    )


Answering = Callable[[int, str, int], Awaitable[Answer]]
"""Has an answer written: to a prompt by its index, by a method, in a pass."""


async def take_turns(
    opened: Callable[[], AbstractAsyncContextManager[Answering]],
    prompts: int,
    methods: Sequence[str],
    *,
    passes: int = 1,
    together: int = 1,
    journal: Journal | None = None,
) -> list[Answer]:
    """Have every prompt answered by every method, `passes` times.

    Each prompt, and each pass, begins with the next method (two of them go A B B A). Cancelling it cancels
    the answers under way and closes what was opened; answers that came are kept.

    Args:
        opened: Opens the function that answers, on a backend that is warmed up and has a cold prefix cache;
            called for each pass that is not in the journal.
        prompts: Number of prompts.
        methods: Their names.
        passes: Number of passes.
        together: Answers at the same time; more than one is no measure of speed.
        journal: Keeps every answer as it comes; those that it has already are not written again.
    """
    # A turn is (pass, prompt, method). Those of the journal are done; the rest is written pass by pass.
    stored = (Answer(**row) for row in measurements(journal))
    answers = {(row.number, row.prompt, row.method): row for row in stored}
    order: list[tuple[int, int, str]] = []
    for number in range(passes):
        for prompt in range(prompts):
            # Each prompt begins with the next method, so that none is always first or second.
            first = (number + prompt) % len(methods)
            order += [(number, prompt, method) for method in (*methods[first:], *methods[:first])]
    with progress(len(order), "answers", done=len(answers.keys() & set(order))) as advance:
        for number in range(passes):
            due = [turn for turn in order if turn[0] == number and turn not in answers]
            if not due:
                continue
            # Each pass opens its own, with a cold prefix cache.
            async with opened() as answer:

                async def write(turn: tuple[int, int, str], answer: Answering = answer) -> None:
                    number, prompt, method = turn
                    answers[turn] = await answer(prompt, method, number)
                    if journal:
                        journal.append(asdict(answers[turn]))
                    advance()

                await for_each(due, write, together)
    return [answers[turn] for turn in order]


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
    try:
        identity, *rows = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        answers = [Answer(**row) for row in rows if "environment" not in row]
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequestError(f"{path} is no file of answers: {error!r}") from error
    if not answers:
        raise InvalidRequestError(f"{path} holds no answers")
    return identity, sorted(answers, key=lambda answer: (answer.number, answer.prompt))


@asynccontextmanager
async def cold_client(url: str, **options: Unpack[BackendOptions]) -> AsyncGenerator[Client]:
    """A connected client whose backend has an empty prefix cache: loaded anew, or flushed; closed at the end.

    Options are those of `open_backend`. `sglang:FOLDER` is started with what forced decoding needs.
    """
    if url.startswith("sglang:"):
        options["server_args"] = {"enable_custom_logit_processor": True, "enable_cache_report": True}
    async with Client(url, **options) as client:
        await client.connect()
        if isinstance(client.backend, SGLangBackend):
            await _flush_cache(client.backend)
        yield client


async def _flush_cache(backend: SGLangBackend) -> None:
    """Empty the prefix cache of a server; cancelling it may leave the cache as it was."""
    try:
        async with httpx.AsyncClient(timeout=300, headers=backend.headers) as http:
            (await http.post(f"{backend.url}/flush_cache")).raise_for_status()
    except httpx.HTTPError as error:
        reason = error or type(error).__name__
        raise BackendError(f"{backend.url}/flush_cache: {reason}. Is the server idle?") from error
