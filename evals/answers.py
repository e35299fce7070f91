"""Answers and what they took: many at a time to judge them, or one at a time, in turns, to compare speed."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pasta_async.errors import InvalidRequestError, PromptTooLongError
from pasta_async.evals.records import measurements
from pasta_async.jobs import for_each, progress
from pasta_async.training.statistics import estimate, format_estimate, format_share

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async import Client, Generation, Sampling
    from pasta_async.jobs import Journal
    from pasta_async.training.statistics import Estimate

__all__ = [
    "FORMS",
    "Answer",
    "Comparison",
    "Form",
    "answer_all",
    "compare",
    "describe_costs",
    "describe_speedup",
    "of_form",
    "read_answers",
    "take_turns",
    "theoretical",
]

Form = Literal["baseline", "parallel"]
"""The model's answer without tags, or one in PASTA-LANG."""
FORMS: tuple[Form, Form] = ("baseline", "parallel")

Name = TypeVar("Name", bound=str)


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

    @property
    def ended_by_length(self) -> bool:
        """Whether a limit ended it: how long it would have taken is not known, so no speed-up counts it."""
        return self.finish_reason == "length"

    @classmethod
    def of(
        cls, generation: Generation, prompt: int, method: str, number: int = 0, family: str = ""
    ) -> Answer:
        """What the library answered."""
        usage = generation.usage
        return cls(
            prompt=prompt,
            method=method,
            number=number,
            seconds=generation.elapsed,
            first_token=generation.threads[0].first_token or generation.elapsed,
            tokens=usage.completion_tokens,
            critical_path=generation.critical_path,
            requests=usage.requests,
            cached_tokens=usage.cached_tokens,
            prefilled_tokens=usage.prefilled_tokens,
            family=family,
            text=generation.text,
            written=generation.document.format(),
            text_tokens=generation.text_tokens,
            promises=len(generation.threads) - 1,
            well_formed=generation.well_formed,
            cut=[one.thread for one in generation.threads if one.was_cut],
            finish_reason=generation.finish_reason,
            complaints=dict(Counter(str(one.code) for one in generation.diagnostics)),
        )


async def answer_all(
    client: Client,
    prompts: Sequence[str],
    journal: Journal,
    *,
    sampling: Sampling,
    together: int = 4,
    forms: Sequence[Form] = FORMS,
) -> list[Answer]:
    """Every prompt in each form; see `take_turns`.

    A prompt that the model's context cannot hold has an empty answer in both.

    Args:
        client: What answers.
        prompts: What is asked.
        journal: Where answers are kept.
        sampling: Of every answer.
        together: Answers at the same time.
        forms: One form alone, if not both.

    Raises what `Client.generate` raises; finished answers are kept. Cancelling it cancels those under way.
    """

    async def ask(index: int, form: Form, _: int) -> Answer:
        try:
            generation = await client.generate(
                prompts[index], sampling=sampling, baseline=form == "baseline", parallel="always"
            )
            return Answer.of(generation, index, form)
        except PromptTooLongError:
            return Answer(index, form, well_formed=False, finish_reason="length")

    return await take_turns(lambda: nullcontext(ask), len(prompts), forms, together=together, journal=journal)


def theoretical(answers: Sequence[Answer], baseline: Sequence[Answer]) -> Estimate:
    """The theoretical speed-up: geometric mean over the prompts of the baseline's tokens / critical path.

    Prompts at which a limit ended one of the two are left out.
    """
    pairs = zip(answers, baseline, strict=True)
    ratios = [
        plain.tokens / own.critical_path
        for own, plain in pairs
        if plain.tokens and own.tokens and not (plain.ended_by_length or own.ended_by_length)
    ]
    return estimate(ratios or [1.0])


def of_form(answers: Sequence[Answer], form: Form) -> list[Answer]:
    """The answers in one form, in order of the prompts."""
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


async def take_turns(
    opened: Callable[[], AbstractAsyncContextManager[Callable[[int, Name, int], Awaitable[Answer]]]],
    prompts: int,
    methods: Sequence[Name],
    *,
    last: Sequence[Name] = (),
    passes: int = 1,
    together: int = 1,
    journal: Journal | None = None,
) -> list[Answer]:
    """Have every prompt answered by every method, `passes` times.

    The methods take turns: each prompt, and each pass, begins with the next one (two of them go A B B A).

    Args:
        opened: Opens what answers, with a cold prefix cache and warmed up; called for each pass that is not
            in the journal. It gives a function that has an answer written and timed: of a prompt by its
            place, by a method, in a pass.
        prompts: How many there are.
        methods: Their names.
        last: Methods that come last at each prompt, since they write what another one wrote.
        passes: How often all of it is done.
        together: Answers at the same time; more than one is no measure of speed.
        journal: Keeps every row as it comes; those that it has already are not taken again.

    Cancelling it cancels the answers under way and closes what was opened.
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
    with progress(len(order), "answers", done=len(found)) as done:
        for number in range(passes):
            due = [one for one in order if one[0] == number and one not in found]
            if not due:
                continue
            async with opened() as answer:

                async def work(one: tuple[int, int, Name], answer: Any = answer) -> None:
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


def compare(rows: Iterable[Answer], method: str = "parallel", base: str = "baseline") -> list[Comparison]:
    """Put two methods side by side, in order of the prompts.

    Pairs of which a limit ended one answer or both are left out, and prompts that have no other pair.

    Raises:
        ValueError: One of them is missing somewhere.
    """
    found = {(row.method, row.prompt, row.number): row for row in rows if row.method in (method, base)}
    pairs: dict[int, list[tuple[Answer, Answer]]] = {}
    for _, prompt, number in sorted(found):
        one, other = found.get((method, prompt, number)), found.get((base, prompt, number))
        if one is None or other is None:
            raise ValueError(f"{method} and {base} have to be measured at every prompt in every pass")
        if not (one.ended_by_length or other.ended_by_length):
            pairs.setdefault(prompt, []).append((one, other))
    return [
        Comparison(
            prompt,
            geometric_mean([other.seconds / one.seconds for one, other in both]),
            geometric_mean([other.critical_path / one.critical_path for one, other in both]),
        )
        for prompt, both in sorted(pairs.items())
    ]


def describe_speedup(found: Sequence[Comparison]) -> dict[str, Any]:
    """Columns of a table: how many prompts, and the geometric means over them, with a 95% interval."""
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
