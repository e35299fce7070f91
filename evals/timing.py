"""Time answers, the two forms of each prompt next to each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import process_time
from typing import TYPE_CHECKING, Literal

from pasta_async import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async import Client, Generation
    from pasta_async.clock import Clock
    from pasta_async.evals.prompts import Prompt

__all__ = ["Form", "Run", "time_answers", "warm_up"]

Form = Literal["parallel", "baseline"]
"""An answer in PASTA-LANG, or the same model's answer without tags."""

_ORDER: tuple[tuple[Form, Form], tuple[Form, Form]] = (("parallel", "baseline"), ("baseline", "parallel"))

_SAMPLING = Sampling(max_tokens=1024)


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
    clock: Clock,
    number: int = 0,
    together: int = 1,
    done: Callable[[], None] = lambda: None,
) -> list[Run]:
    """One pass: every prompt in both forms, in the order A B B A; odd passes begin with B.

    Args:
        client: What answers.
        prompts: What is asked.
        clock: Measures.
        number: The pass.
        together: Prompts that are answered at the same time, all in the same form.
        done: Called after each answer.

    Cancelling it cancels the answers under way.
    """

    async def timed(index: int, form: Form) -> Run:
        began, cpu = clock.time(), process_time()
        generation = await _answer(client, prompts[index], form)
        seconds = (clock.time() - began, process_time() - cpu)
        done()
        return _run(index, prompts[index], form, number, seconds, generation)

    runs = list[Run]()
    for turn, start in enumerate(range(0, len(prompts), together)):
        group = range(start, min(start + together, len(prompts)))
        for form in _ORDER[(turn + number) % 2]:
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(timed(index, form)) for index in group]
            runs += [answer.result() for answer in answers]
    return runs


async def warm_up(client: Client, prompts: Sequence[Prompt]) -> None:
    """Answer some prompts in both forms, untimed. Cancelling it cancels the answer under way."""
    for prompt in prompts:
        for form in _ORDER[0]:
            await _answer(client, prompt, form)


async def _answer(client: Client, prompt: Prompt, form: Form) -> Generation:
    return await client.generate(prompt.text, sampling=_SAMPLING, baseline=form == "baseline")


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
        cpu_seconds=seconds[1],
        tokens=usage.completion_tokens,
        critical_path=generation.critical_path,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        requests=usage.requests,
        well_formed=generation.finish == "end" and not generation.diagnostics,
        right=prompt.right(generation.text),
        text=generation.text,
    )
