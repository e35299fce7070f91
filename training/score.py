"""Score sampled answers for stage 2: `python -m pasta_async.training.score`.

Writes the theoretical speed-up and the quality of each sample. Their weight is chosen later, when a model is
trained, so that another one needs no new judgement. The judge is the synthetic task's program (`task`); a
language model in a folder, which says how likely an answer is (`likelihood`), where counted faults are taken
off; a judge that was trained on preferences by `pasta_async.training.judge` (`reward`); a model behind an
OpenAI-compatible endpoint that returns log-probabilities (`http://host:30000/v1`); or your own
(`package.module:name`, what makes a `pasta_async.training.score.Judge`). A model's verdicts are kept in a
journal, so that the same command resumes an interrupted run.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import pkgutil
import re
import tomllib
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, Protocol, Self

from pydantic import Field, model_validator

from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.jobs import Journal, journal_beside
from pasta_async.training.corpus import Record, write_records
from pasta_async.training.endpoint import (
    NAMES,
    Comparer,
    Endpoint,
    EndpointSettings,
    collect,
    probability,
)
from pasta_async.training.faults import faults_of_sample, soundness
from pasta_async.training.identity import model_digest
from pasta_async.training.preference import Score, read_samples, value
from pasta_async.training.synthetic.families import grade
from pasta_async.training.synthetic.records import example_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from pasta_async.protocol import Message
    from pasta_async.training.preference import Sample, SampledPrompt

__all__ = [
    "WEIGHTS",
    "Judge",
    "JudgeSettings",
    "PairwiseJudge",
    "ScoreSettings",
    "TaskJudge",
    "main",
    "open_judge",
    "score",
]

WEIGHTS: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, math.inf)
"""The weights of quality that the paper trains with (section 4)."""

_OWN = re.compile(r"[\w.]+:\w+")
_IN_FOLDERS = ("likelihood", "reward")


class JudgeSettings(EndpointSettings):
    """Who says how good answers are."""

    judge: str = Field(
        default="task",
        description="task; likelihood; reward; an endpoint, http://host:30000/v1; or package.module:name",
    )
    judge_model: str = Field(
        default="",
        description="name of the model at the judge's endpoint; folder of the model of likelihood, or of the "
        "trained judge of reward",
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.remote and not self.judge_model:
            raise ValueError("name the endpoint's model with --judge-model")
        if self.judge in _IN_FOLDERS and not self.judge_model:
            raise ValueError(f"name the folder for --judge {self.judge} with --judge-model")
        if not self.remote and self.judge not in ("task", *_IN_FOLDERS) and not _OWN.fullmatch(self.judge):
            raise ValueError(
                "--judge is task, likelihood, reward, http://host:30000/v1, or package.module:name, not "
                f"{self.judge!r}"
            )
        return self

    @property
    def remote(self) -> bool:
        """Whether the judge is behind an endpoint."""
        return self.judge.startswith(("http://", "https://"))


class ScoreSettings(JudgeSettings):
    """How to score. Every field is a flag of the command line."""

    samples: Path = Field(description="file of samples")
    out: Path = Field(description="file of scores, JSON lines; the judge's journal stands beside it")
    faults: bool = Field(
        default=False, description="take counted faults off the quality; with likelihood they always are"
    )


async def score(settings: ScoreSettings) -> dict[str, Any]:
    """Score, write the file, and return figures of the run. Cancelling it loses only the requests under way.

    The same answer to a prompt is judged once. Samples that ended in an error have no score.

    Raises:
        PastaError: The samples or the judge cannot be used; replies that arrived are kept.
    """
    prompts = await asyncio.to_thread(lambda: [*read_samples(settings.samples, tokens=False)])
    answers = {(p.id, s.text): p for p in prompts for s in p.samples if not s.error}
    async with AsyncExitStack() as stack:
        journal = journal_beside(settings.out)
        judge = await open_judge(settings, journal, stack)

        def quality(answer: tuple[str, str]) -> Awaitable[float]:
            return judge.quality(answers[answer], answer[1])

        qualities, failures = await collect(answers, quality, settings.in_flight)
    faults = settings.faults or settings.judge == "likelihood"
    scores = [
        Score(
            id=prompt.id,
            number=sample.number,
            speedup=_tokens(prompt, sample, settings) / sample.critical_path if sample.critical_path else 1.0,
            quality=qualities[prompt.id, sample.text]
            * (soundness(faults_of_sample(sample)) if faults else 1.0),
        )
        for prompt in prompts
        for sample in prompt.samples
        if not sample.error and (prompt.id, sample.text) in qualities
    ]
    write_records(settings.out, scores)
    summary = {**_summary(prompts, scores), "failures": dict(Counter(failures.values()).most_common())}
    if isinstance(judge, PairwiseJudge):
        asked = judge.comparer
        summary |= {"requests": asked.requests, "resumed": asked.resumed, "tokens": asked.tokens}
    return summary


def _tokens(prompt: SampledPrompt, sample: Sample, settings: JudgeSettings) -> int:
    """What an answer's critical path is compared with: the baseline's tokens.

    Likelihood cannot see that an answer says less, so there it is the answer's own tokens if they are fewer.
    """
    baseline = prompt.baseline.tokens
    return min(baseline, sample.tokens) if settings.judge == "likelihood" else baseline


def _summary(prompts: Sequence[SampledPrompt], scores: Sequence[Score]) -> dict[str, Any]:
    """Spreads are the best less the worst of a prompt; one without (`ties`) teaches nothing."""
    by_prompt: defaultdict[str, list[Score]] = defaultdict(list)
    for one in scores:
        by_prompt[one.id].append(one)

    def spreads(weight: float) -> list[float]:
        values = ([value(one, weight) for one in own] for own in by_prompt.values())
        return [max(own) - min(own) for own in values]

    samples = [sample for prompt in prompts for sample in prompt.samples]
    return {
        "prompts": len(prompts),
        "samples": len(samples),
        "well_formed": fmean([sample.well_formed for sample in samples] or [0.0]),
        "scored": len(scores),
        "mean_quality": fmean([one.quality for one in scores] or [0.0]),
        "geometric_mean_speedup": geometric_mean([one.speedup for one in scores if one.speedup > 0] or [1.0]),
        "quality_spread": fmean(spreads(math.inf) or [0.0]),
        "speedup_spread": fmean(spreads(0.0) or [0.0]),
        "ties": {f"{weight:g}": spreads(weight).count(0.0) for weight in WEIGHTS},
    }


# --- judges

JUDGE_PROMPT: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("judge.toml").read_text(encoding="utf-8")
)
"""The `system` and the `user` message that compare two answers."""


class Judge(Protocol):
    """Says how good an answer is. A judge that costs something keeps its verdicts."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The quality of an answer to a prompt, from 0 to 1; the baseline's answer is there to compare with.

        Cancelling it ends its requests.

        Raises:
            BackendError: This answer could not be judged; others may be.
            PastaError: No answer can be.
        """
        ...


class TaskJudge:
    """The program of the synthetic task: the share of an answer that is right."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """See `pasta_async.training.synthetic.grade`. It waits for nothing.

        Raises:
            InvalidRequestError: The prompt is not of the synthetic task.
        """
        try:
            example = example_of(Record(id=prompt.id, messages=prompt.messages, written=""))
        except ValueError as error:
            raise InvalidRequestError(f"--judge task judges the synthetic task only: {error}") from None
        return grade(example, text)


class PairwiseJudge:
    """A model that compares an answer with the baseline's, as in the paper (section 4).

    It is asked in both orders, since judges prefer a position, and its certainty is read from the
    log-probabilities of its verdict, as AlpacaEval's weighted judge does. The mean of both orders is the
    probability that the answer wins: 0.5 for one as good as the baseline's.
    """

    def __init__(self, comparer: Comparer) -> None:
        self.comparer: Comparer = comparer

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability that an answer is better than the baseline's; a half if they are the same.

        Cancelling it ends its request; verdicts that arrived are kept.

        Raises:
            BackendError: The endpoint failed, or its replies have no verdict.
        """
        baseline = prompt.baseline.text
        if text == baseline:
            return 0.5
        ahead = await self.comparer.logprobs(_comparison(prompt.messages, text, baseline))
        behind = await self.comparer.logprobs(_comparison(prompt.messages, baseline, text))
        return (probability(ahead) + 1.0 - probability(behind)) / 2


def _comparison(messages: tuple[Message, ...], first: str, second: str) -> list[Message]:
    """The judge's prompt for two answers."""
    turns = [f"[{message['role']}]\n{message['content']}" for message in messages]
    prompt = "\n\n".join(turns) if len(turns) > 1 else messages[0]["content"]
    first_name, second_name = NAMES
    request = JUDGE_PROMPT["user"].format(
        prompt=prompt, first_name=first_name, second_name=second_name, first=first, second=second
    )
    return [{"role": "system", "content": JUDGE_PROMPT["system"]}, {"role": "user", "content": request}]


async def open_judge(settings: JudgeSettings, journal: Path, stack: AsyncExitStack) -> Judge:
    """The judge that the settings name; what it opens is closed by the stack.

    Raises:
        InvalidRequestError: There is no such judge, or the journal of its replies is another one's.
    """
    if settings.judge == "task":
        return TaskJudge()
    if settings.judge == "likelihood":
        return _likelihood_judge(Path(settings.judge_model), journal, stack)
    if settings.judge == "reward":
        from pasta_async.training.judge.reward import RewardJudge, StoredJudge  # needs torch

        stored = StoredJudge.read(Path(settings.judge_model))
        return RewardJudge(stored, stack.enter_context(Journal(journal, stored.identity)))
    if not settings.remote:
        try:
            return pkgutil.resolve_name(settings.judge)()
        except (ImportError, AttributeError) as error:
            raise InvalidRequestError(f"--judge {settings.judge}: {error}") from error
    form = hashlib.sha256("".join(JUDGE_PROMPT.values()).encode()).hexdigest()[:16]
    identity = {"judge": settings.judge, "model": settings.judge_model, "form": form}
    kept = stack.enter_context(Journal(journal, identity))
    fields = {"temperature": 0.0, "max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    endpoint = Endpoint(settings.judge, settings.judge_model, settings, **fields)
    return PairwiseJudge(Comparer(await stack.enter_async_context(endpoint), kept))


def _likelihood_judge(folder: Path, journal: Path, stack: AsyncExitStack) -> Judge:
    from pasta_async.training.likelihood import LanguageModel, LikelihoodJudge  # needs torch

    model = LanguageModel(folder)
    identity = {"judge": "likelihood", "model": model_digest(folder)}
    return LikelihoodJudge(model, stack.enter_context(Journal(journal, identity)))


main: Command = command(ScoreSettings, score, "pasta_async.training.score", __doc__, resumes=True)

if __name__ == "__main__":
    main()
