r"""Answers and what they took: many at a time to judge them, or one at a time, in turns, to compare speed.

    python -m pasta_async.evals.answers --backend local:pasta-smol --original local:BASE.gguf \
        --prompts alpaca_eval.jsonl --temperature 0.6 --max-tokens 500 --together 64 --out answers.jsonl

has a model answer prompts plainly and in parallel, and another one plainly (`--original`). The instruments
(`faults`, `likelihood`, `ifeval`, `judge`, `alpaca`) read the file.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Literal

from pydantic import Field

from pasta_async import Client, Limits, Sampling
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.errors import InvalidRequestError, PromptTooLongError
from pasta_async.evals.documents import Drawn, Prompt, digest, read_prompts
from pasta_async.evals.records import grouped, markdown_table, measurements
from pasta_async.jobs import Journal, for_each, progress
from pasta_async.training.identity import weights_of
from pasta_async.training.sample import answer_seed
from pasta_async.training.statistics import Estimate, estimate, format_estimate, format_share, of_known

Form = Literal["original", "baseline", "parallel"]
"""Another model's plain answer, the model's own without tags, or one in PASTA-LANG."""
FORMS: tuple[Form, Form] = ("baseline", "parallel")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: a row of the results."""

    prompt: int
    """Its prompt's place in the list."""
    method: str
    """How it was written: a `Form`, or one of `methods.METHODS`."""
    number: int = 0
    """The pass, from 0."""
    seconds: float = 0.0
    """From the call to the finished answer; beside other answers no measure of speed."""
    first_token: float = 0.0
    """Seconds until the first token of whatever is decoded first, an outline for instance."""
    tokens: int = 0
    """Decoded: text, tags, outlines."""
    critical_path: int = 0
    """Tokens that had to be decoded one after another."""
    requests: int = 0
    cached_tokens: int = 0
    """Context tokens that the prefix cache had, over all requests."""
    prefilled_tokens: int = 0
    """Context tokens that were computed."""
    family: str = ""
    """What its prompt belongs to."""
    text: str = ""
    written: str = ""
    """With the tags."""
    text_tokens: int = 0
    """Of the visible text."""
    promises: int = 0
    well_formed: bool = True
    """Whether it ended by itself, with nothing to complain about."""
    cut: list[int] = field(default_factory=list[int])
    """Numbers of the threads whose chunk their model did not end itself."""
    finish_reason: str = "stop"
    """What ended it: `length` if that was a limit, and then it says nothing about speed."""
    complaints: dict[str, int] = field(default_factory=dict[str, int])
    """How often each code of `pasta_async.lang.Code` was found in it."""
    question: str = ""
    """The text of its prompt."""

    @property
    def ended_by_length(self) -> bool:
        """Whether a limit ended it."""
        return self.finish_reason == "length"

    @property
    def whole_text_tokens(self) -> int:
        """Tokens that the visible text alone would have taken, the end of text among them."""
        return self.text_tokens + 1


async def ask(client: Client, prompt: str, row: Answer, **options: Any) -> Answer:
    """Have a prompt answered, in parallel or plainly as the row's method says.

    Options are those of `Client.generate`, which says what is raised and what cancelling it does.

    Returns:
        The row with what the answer took; the empty answer if the model's context cannot hold the prompt.
    """
    try:
        found = await client.generate(prompt, baseline=row.method != "parallel", parallel="always", **options)
    except PromptTooLongError:
        return replace(row, well_formed=False, finish_reason="length")
    usage = found.usage
    return replace(
        row,
        seconds=found.elapsed,
        first_token=found.threads[0].first_token or found.elapsed,
        tokens=usage.completion_tokens,
        critical_path=found.critical_path,
        requests=usage.requests,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        text=found.text,
        written=found.document.format(),
        text_tokens=found.text_tokens,
        promises=len(found.threads) - 1,
        well_formed=found.well_formed,
        cut=[one.thread for one in found.threads if one.was_cut],
        finish_reason=found.finish_reason,
        complaints=dict(Counter(str(one.code) for one in found.diagnostics)),
    )


async def answer_all(
    client: Client,
    prompts: Sequence[Prompt],
    journal: Journal,
    *,
    sampling: Sampling,
    together: int,
    forms: Sequence[Form] = FORMS,
    passes: int = 1,
) -> list[Answer]:
    """Every prompt in each form, `passes` times; see `take_turns` and `ask`.

    Every answer has its own seed, made of the sampling's, the prompt and the pass.
    """
    seeded = sampling.temperature > 0 and (await client.connect()).honours_seeds

    async def answer(index: int, form: str, number: int) -> Answer:
        prompt = prompts[index]
        seed = answer_seed(sampling.seed or 0, prompt.text, number) if seeded else None
        row = Answer(index, form, number, family=prompt.family, question=prompt.text)
        drawn = sampling.model_copy(update={"seed": seed})
        return await ask(client, prompt.text, row, sampling=drawn, whole_chunks=True)  # nothing is streamed

    return await take_turns(
        lambda: nullcontext(answer), len(prompts), forms, passes=passes, together=together, journal=journal
    )


def theoretical(
    answers: Sequence[Answer], baseline: Sequence[Answer], clusters: Sequence[Hashable] = ()
) -> Estimate | None:
    """The theoretical speed-up: geometric mean over the prompts of the baseline's tokens / critical path.

    Pairs that are not `comparable` are left out; None if there is no other. For `clusters` see `estimate`.
    """
    pairs = zip(answers, baseline, strict=True)
    ratios = [plain.tokens / own.critical_path if comparable(own, plain) else None for own, plain in pairs]
    return of_known(estimate, ratios, clusters or range(len(ratios)))


def comparable(one: Answer, other: Answer) -> bool:
    """Whether two answers tell of speed: one of no token does not, nor one that a limit ended."""
    return all(answer.tokens and not answer.ended_by_length for answer in (one, other))


def prompts_of(answers: Sequence[Answer]) -> list[int]:
    """The prompt of each answer: what answers of several passes go together by."""
    return [one.prompt for one in answers]


def by_prompt(answers: Iterable[Answer], value: Callable[[Answer], float]) -> dict[int, float]:
    """A value of each prompt: the geometric mean over its answers."""
    return {
        prompt: geometric_mean(map(value, own))
        for prompt, own in grouped(answers, lambda one: one.prompt).items()
    }


def of_form(answers: Sequence[Answer], form: str) -> list[Answer]:
    """The answers in one form, or by one method, in their order."""
    return [answer for answer in answers if answer.method == form]


def read_answers(path: Path | str) -> tuple[dict[str, Any], list[Answer]]:
    """Read a file of answers that a benchmark wrote.

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
    return identity, sorted(answers, key=lambda one: (one.number, one.prompt))


Answering = Callable[[int, str, int], Awaitable[Answer]]
"""Has an answer written and timed: of a prompt by its place, by a method, in a pass."""


async def take_turns(
    opened: Callable[[], AbstractAsyncContextManager[Answering]],
    prompts: int,
    methods: Sequence[str],
    *,
    last: Sequence[str] = (),
    passes: int = 1,
    together: int = 1,
    journal: Journal | None = None,
) -> list[Answer]:
    """Have so many prompts answered by every method, `passes` times.

    The methods take turns: each prompt, and each pass, begins with the next one (two of them go A B B A).
    Cancelling it cancels the answers under way and closes what was opened; those that came are kept.

    Args:
        opened: Opens what answers, with a cold prefix cache and warmed up; called for each pass that is not
            in the journal.
        prompts: How many there are.
        methods: Their names.
        last: Methods that come last at each prompt, since they write what another one wrote.
        passes: How often all of it is done.
        together: Answers at the same time; more than one is no measure of speed.
        journal: Keeps every row as it comes; those that it has already are not taken again.
    """
    rows = (Answer(**row) for row in measurements(journal))
    found = {(row.number, row.prompt, row.method): row for row in rows}
    order = [
        (number, prompt, method)
        for number in range(passes)
        for prompt in range(prompts)
        for first in [(number + prompt) % len(methods)]
        for method in (*methods[first:], *methods[:first], *last)
    ]
    with progress(len(order), "answers", done=len(found.keys() & set(order))) as done:
        for number in range(passes):
            due = [one for one in order if one[0] == number and one not in found]
            if not due:
                continue
            async with opened() as answer:

                async def work(one: tuple[int, int, str], answer: Any = answer) -> None:
                    found[one] = await answer(one[1], one[2], one[0])
                    if journal:
                        journal.append(asdict(found[one]))
                    done()

                await for_each(due, work, together)
    return [found[one] for one in order]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two methods at one prompt: geometric means over all passes."""

    prompt: int
    speedup: float
    """Seconds of the base / seconds of the method."""
    theoretical: float
    """Critical path of the base (for an answer in sequence, its tokens) / that of the method."""


def compare(rows: Sequence[Answer], method: str = "parallel", base: str = "baseline") -> list[Comparison]:
    """Put two methods side by side, in order of the prompts; only what is `comparable`.

    Raises:
        ValueError: One of them is missing somewhere.
    """
    ours, theirs = ({(one.prompt, one.number): one for one in of_form(rows, name)} for name in (method, base))
    if ours.keys() != theirs.keys():
        raise ValueError(f"{method} and {base} have to be measured at every prompt in every pass")
    both_of = ((ours[place], theirs[place]) for place in sorted(ours))
    pairs = [(one, other) for one, other in both_of if comparable(one, other)]
    return [
        Comparison(
            prompt,
            geometric_mean([other.seconds / one.seconds for one, other in both]),
            geometric_mean([other.critical_path / one.critical_path for one, other in both]),
        )
        for prompt, both in grouped(pairs, lambda pair: pair[0].prompt).items()
    ]


def describe_speedup(
    rows: Sequence[Answer], method: str = "parallel", base: str = "baseline"
) -> dict[str, Any]:
    """What `compare` finds as columns: how many prompts, geometric means over them, a 95% interval."""
    found = compare(rows, method, base)
    if not found:
        return {"prompts": 0, "speed-up": None, "theoretical": None, "realised": None}
    return {
        "prompts": len(found),
        "speed-up": format_estimate(estimate([one.speedup for one in found]), ".2f"),
        "theoretical": geometric_mean([one.theoretical for one in found]),
        "realised": geometric_mean([one.speedup / one.theoretical for one in found]),
    }


def describe_costs(rows: Sequence[Answer]) -> dict[str, Any]:
    """Columns of a table: what some answers took on average."""
    cached, prefilled = fmean(row.cached_tokens for row in rows), fmean(row.prefilled_tokens for row in rows)
    return {
        "seconds": fmean(row.seconds for row in rows),
        "first token ms": 1000 * fmean(row.first_token for row in rows),
        "tokens": fmean(row.tokens for row in rows),
        "critical path": fmean(row.critical_path for row in rows),
        "requests": fmean(row.requests for row in rows),
        "prefilled": prefilled,
        "cached": format_share(cached, cached + prefilled),
    }


class AnswerSettings(CommandSettings):
    """What is answered, and by whom."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    original: str = Field(default="", description="another backend, which answers plainly too")
    prompts: Path = Field(description="a prompt a line, or .jsonl with `instruction` or `prompt`")
    sample: Drawn = None
    out: Path = Field(description="file of answers; a run that was interrupted goes on from what it has")
    max_tokens: Count = Field(default=1024, description="of an answer, tags counted")
    temperature: float = Field(default=0.0, ge=0, description="of the sampler (0: greedy)")
    seed: int = Field(default=0, ge=0, description="of the draws: every answer has its own, made of this one")
    passes: Count = Field(default=1, description="answers to each prompt, of other draws, in each form")
    together: Count = Field(default=16, description="answers at the same time")


async def write_answers(settings: AnswerSettings) -> list[Answer]:
    """Have the prompts answered: by the other backend, if there is one, then in both forms.

    Cancelling it cancels the answers under way; those that came are kept.

    Raises:
        PastaError: The prompts or a backend cannot be used, or the file has other answers.
    """
    if settings.passes > 1 and not settings.temperature:
        raise InvalidRequestError("greedy answers are all alike: --passes needs a --temperature")
    prompts = read_prompts(settings.prompts, settings.sample)
    other: list[tuple[str, Form]] = [(settings.original, "original")] if settings.original else []
    asked: list[tuple[str, Form]] = [*other, *((settings.backend, form) for form in FORMS)]
    identity = {
        "benchmark": "answers",
        **settings.model_dump(exclude={"prompts", "sample", "together", "out"}),
        "weights": [await weights_of(one) for one in (settings.backend, settings.original)],
        "prompts": digest(prompt.text for prompt in prompts),
        "count": len(prompts),
        "forms": [form for _, form in asked],
    }
    sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature, seed=settings.seed)
    limits = Limits(client_threads=4 * settings.together, timeout=None)
    found: list[Answer] = []
    with Journal(settings.out, identity) as journal:
        for backend, form in asked:
            async with Client(backend, limits=limits) as client:
                found += await answer_all(
                    client,
                    prompts,
                    journal,
                    sampling=sampling,
                    together=settings.together,
                    forms=(form,),
                    passes=settings.passes,
                )
    return found


def summarise(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each form: lengths, how many were cut, and what is theoretically gained."""
    plain = of_form(answers, "baseline")
    rows: list[dict[str, Any]] = []
    for form in dict.fromkeys(answer.method for answer in answers):
        own = of_form(answers, form)
        here = [one.promises > 0 for one in own]
        promised, beside = [*compress(own, here)], [*compress(plain, here)]
        rows.append(
            {
                "": form,
                "answers": len(own),
                "cut by length": format_share(sum(one.ended_by_length for one in own), len(own)),
                "malformed": format_share(sum(not one.well_formed for one in own), len(own)),
                "tokens": fmean(one.tokens for one in own),
                "critical path": fmean(one.critical_path for one in own),
                "with promises": format_share(len(promised), len(own)),
                "theoretical speed-up": format_estimate(theoretical(own, plain, prompts_of(own)), ".2f"),
                "where promised": format_estimate(theoretical(promised, beside, prompts_of(promised)), ".2f"),
            }
        )
    return rows


main: Command = command(
    AnswerSettings,
    lambda settings: markdown_table(summarise(asyncio.run(write_answers(settings)))),
    "answers",
    __doc__,
    resumes=True,
)

if __name__ == "__main__":
    main()
