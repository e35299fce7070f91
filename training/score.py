"""Score sampled answers for stage 2: `python -m pasta_async.training.score`.

Writes the theoretical speed-up and the quality of each sample. Their weight is chosen later, when a model is
trained, so that another one needs no new judgement. The judge is the synthetic task's program (`task`); or a
model behind an OpenAI-compatible endpoint that returns log-probabilities (`http://host:30000/v1`), whose
replies are kept in a journal, so that the same command goes on where an interrupted one was; or your own
(`package.module:name`, what makes a `pasta_async.training.preference.judge.Judge`).
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from tqdm import tqdm

from pasta_async.cli.command import ending
from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.store import write_lines
from pasta_async.training.preference.judge import TaskJudge
from pasta_async.training.preference.judge_pairwise import PairwiseJudge
from pasta_async.training.preference.judging import Scoring, Standing, standing
from pasta_async.training.preference.samples import read_samples
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.preference.judge import Judge

__all__ = ["ScoreSettings", "Summary", "main", "open_judge", "score"]

_OWN = re.compile(r"[\w.]+:\w+")


class ScoreSettings(BaseModel):
    """How to score. Every field is a flag of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    samples: Path = Field(description="file of samples")
    out: Path = Field(description="file of scores, JSON lines; the judge's journal stands beside it")
    judge: str = Field(description="task; an endpoint, http://host:30000/v1; or package.module:name")
    judge_model: str = Field(default="", description="name of the model at the endpoint")
    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable with its key")
    in_flight: int = Field(default=32, ge=1, description="requests at a time")
    retries: int = Field(default=5, ge=0, description="of a request that fails on its way")
    timeout: float = Field(default=120.0, gt=0, description="seconds for a request")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.remote and not self.judge_model:
            raise ValueError("name the endpoint's model with --judge-model")
        if not self.remote and self.judge != "task" and not _OWN.fullmatch(self.judge):
            raise ValueError(
                f"--judge is task, http://host:30000/v1, or package.module:name, not {self.judge!r}"
            )
        return self

    @property
    def remote(self) -> bool:
        """Whether the judge is behind an endpoint."""
        return self.judge.startswith(("http://", "https://"))


class Summary(BaseModel):
    """The figures of a run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    standing: Standing
    failures: dict[str, int]
    """Why answers have no score, and how many; the same command asks again."""
    requests: int = 0
    """Sent to the judge by this run, without the client's own retries."""
    resumed: int = 0
    """Replies that were in the journal already."""
    tokens: int = 0
    """Of these requests and their replies."""

    def __str__(self) -> str:
        lines = [str(self.standing)]
        if self.requests or self.resumed:
            asked = f"{self.requests} requests to the judge, {self.tokens:,} tokens"
            lines.append(f"{asked}; {self.resumed} replies from the journal")
        lines += [f"not judged, {count} times: {reason}" for reason, count in self.failures.items()]
        return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason, Ctrl-C with 130."""
    settings = read_command_line(ScoreSettings, "pasta_async.training.score", __doc__, argv)
    with ending(resumes=True):
        print(asyncio.run(score(settings)))


async def score(settings: ScoreSettings) -> Summary:
    """Score, and write the file of scores. Cancelling it loses only the requests under way.

    Raises:
        PastaError: The samples or the judge cannot be used; replies that arrived are kept.
    """
    prompts = await asyncio.to_thread(read_samples, settings.samples)
    answers = len({(prompt.id, sample.text) for prompt in prompts for sample in prompt.samples})
    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, stack)
        bar: tqdm[NoReturn] = stack.enter_context(tqdm(total=answers, unit=" answers", disable=None))
        scoring = Scoring(judge, on_progress=lambda: _advance(bar))
        scores = await scoring.run(prompts, settings.in_flight)
    write_lines(settings.out, scores)
    paid = judge if isinstance(judge, PairwiseJudge) else None
    return Summary(
        standing=standing(prompts, scores),
        failures=dict(Counter(scoring.failures).most_common()),
        requests=paid.requests if paid else 0,
        resumed=paid.resumed if paid else 0,
        tokens=paid.tokens if paid else 0,
    )


def _advance(bar: tqdm[NoReturn]) -> None:
    bar.update()


async def open_judge(settings: ScoreSettings, stack: AsyncExitStack) -> Judge:
    """The judge that the settings name; what it opens is closed by the stack.

    Raises:
        InvalidRequestError: There is no such judge, or its journal beside `settings.out` is another one's.
    """
    if settings.judge == "task":
        return TaskJudge()
    if not settings.remote:
        return _own(settings.judge)
    from pasta_async.training.annotate.endpoint import Endpoint  # needs the client, which takes a second

    endpoint = await stack.enter_async_context(
        Endpoint(
            settings.judge,
            settings.judge_model,
            key_variable=settings.key_variable,
            max_tokens=1,
            top_logprobs=5,
            retries=settings.retries,
            timeout=settings.timeout,
        )
    )
    journal = settings.out.with_name(f"{settings.out.stem}.journal{settings.out.suffix}")
    asked = {"judge": settings.judge, "model": settings.judge_model}
    judge = PairwiseJudge(endpoint, journal, asked)
    stack.callback(judge.close)
    return judge


def _own(name: str) -> Judge:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise InvalidRequestError(f"--judge {name}: {error}") from error


if __name__ == "__main__":
    main()
