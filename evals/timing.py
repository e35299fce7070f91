"""Time answers, the two forms of each prompt next to each other."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from time import process_time
from typing import TYPE_CHECKING, Literal

from pasta_async import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async import Client, Generation
    from pasta_async.clock import Clock
    from pasta_async.evals.prompts import Prompt
    from pasta_async.jobs import Journal

__all__ = ["SAMPLING", "Form", "Run", "kept_runs", "time_answers", "warm_up"]

Form = Literal["parallel", "baseline"]
"""An answer in PASTA-LANG, or the same model's answer without tags."""

_ORDER: tuple[tuple[Form, Form], tuple[Form, Form]] = (("parallel", "baseline"), ("baseline", "parallel"))

SAMPLING = Sampling(max_tokens=1024)
"""Greedy."""


@dataclass(frozen=True)
class Run:
    """One timed answer."""

    prompt: int
    """Its place in the list."""
    family: str
    form: Form
    number: int
    """The pass, from 0."""
    seconds: float
    """From the call to the finished answer."""
    first_token: float
    """Seconds until its first token."""
    cpu_seconds: float
    """CPU time of this process meanwhile: the engine's too if it is embedded, else the client's alone."""
    tokens: int
    """Generated, tags counted."""
    critical_path: int
    cached_tokens: int
    """Context tokens that the prefix cache had, over all requests."""
    prefilled_tokens: int
    requests: int
    well_formed: bool
    """Whether it ended by itself, with nothing to complain about."""
    right: bool | None
    text: str


async def time_answers(
    client: Client,
    prompts: Sequence[Prompt],
    *,
    baseline: Client | None = None,
    clock: Clock,
    number: int = 0,
    together: int = 1,
    sampling: Sampling = SAMPLING,
    journal: Journal | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Run]:
    """One pass: every prompt in both forms, in the order A B B A; odd passes begin with B.

    Args:
        client: What answers.
        prompts: What is asked.
        baseline: What answers as the baseline, if that is another model.
        clock: Measures.
        number: The pass.
        together: Prompts that are answered at the same time, all in the same form.
        sampling: As the client takes it.
        journal: Keeps the runs; those of this pass that it has are not taken again.
        done: Called after each answer.

    Cancelling it cancels the answers under way.
    """

    async def timed(index: int, form: Form) -> Run:
        began, cpu = clock.time(), process_time()
        answering = baseline if baseline is not None and form == "baseline" else client
        generation = await _answer(answering, prompts[index], form, sampling)
        seconds = (clock.time() - began, process_time() - cpu)
        done()
        return _run(index, prompts[index], form, number, seconds, generation)

    known = {(run.prompt, run.form): run for run in kept_runs(journal) if run.number == number}
    runs = list[Run]()
    for turn, start in enumerate(range(0, len(prompts), together)):
        group = range(start, min(start + together, len(prompts)))
        for form in _ORDER[(turn + number) % 2]:
            if all((index, form) in known for index in group):
                runs += [known[index, form] for index in group]
                for _ in group:
                    done()
                continue
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(timed(index, form)) for index in group]
            runs += [answer.result() for answer in answers]
            if journal:
                for answer in answers:
                    journal.append(asdict(answer.result()))
    return runs


def kept_runs(journal: Journal | None) -> list[Run]:
    """The runs in a journal; beside them it tells where they were taken."""
    return [Run(**row) for row in journal.rows if "environment" not in row] if journal else []


async def warm_up(client: Client, prompts: Sequence[Prompt], sampling: Sampling = SAMPLING) -> None:
    """Answer some prompts in both forms, untimed. Cancelling it cancels the answer under way."""
    for prompt in prompts:
        for form in _ORDER[0]:
            await _answer(client, prompt, form, sampling)


async def _answer(client: Client, prompt: Prompt, form: Form, sampling: Sampling) -> Generation:
    return await client.generate(prompt.text, sampling=sampling, baseline=form == "baseline")


def _run(
    index: int,
    prompt: Prompt,
    form: Form,
    number: int,
    seconds: tuple[float, float],
    generation: Generation,
) -> Run:
    usage = generation.usage
    return Run(
        prompt=index,
        family=prompt.family,
        form=form,
        number=number,
        seconds=seconds[0],
        first_token=generation.threads[0].first_token or generation.elapsed,
        cpu_seconds=seconds[1],
        tokens=usage.completion_tokens,
        critical_path=generation.critical_path,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        requests=usage.requests,
        well_formed=generation.finish_reason == "stop" and not generation.diagnostics,
        right=prompt.right(generation.text),
        text=generation.text,
    )
