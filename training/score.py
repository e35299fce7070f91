"""Score sampled answers for stage 2: `python -m pasta_async.training.score`.

Writes the theoretical speed-up and the quality of each sample. Their weight is chosen later, when a model is
trained, so that another one needs no new judgement. The judge (--judge) is one of three:

- `likelihood`: a language model in a folder says how likely an answer is; counted faults are taken off
- `http://host:30000/v1`: a model behind an OpenAI-compatible endpoint that returns log-probabilities
- `package.module:name`: your own, a class or function that makes a `pasta_async.training.judging.Judge`. It
  gets --judge-model and a journal, or nothing if there is no --judge-model

A model's verdicts are kept in a journal, so that the same command resumes an interrupted run.
"""

from __future__ import annotations

import asyncio
import pkgutil
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Self

from pydantic import Field, model_validator

from pasta_async.backends.options import TorchDType
from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.results import sequential_tokens
from pasta_async.training.data.corpus import write_records
from pasta_async.training.endpoint import Endpoint, EndpointSettings
from pasta_async.training.faults import soundness
from pasta_async.training.jobs import Journal, collect, journal_beside
from pasta_async.training.judging import Judge, PairwiseJudge
from pasta_async.training.model_digest import model_digest
from pasta_async.training.samples import SampledPrompt, Score, faults_of_sample, read_samples


class JudgeSettings(EndpointSettings):
    """The judge of the answers' quality."""

    judge: str = Field(
        default="likelihood",
        description="likelihood; an endpoint, http://host:30000/v1; or package.module:name",
    )
    judge_model: str = Field(
        default="",
        description="name at the endpoint; folder of the model (likelihood); what your own judge is made of",
    )

    dtype: TorchDType = Field(
        default="auto", description="of likelihood's model; auto: bfloat16 on CUDA, else float32"
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.judge_model and (self.remote or self.judge == "likelihood"):
            raise ValueError("name the endpoint's model, or the model's folder, with --judge-model")
        if self.judge not in ("", "likelihood") and ":" not in self.judge:
            raise ValueError(
                f"--judge {self.judge} is no endpoint, no package.module:name, no folder that is taken here"
            )
        return self

    @property
    def remote(self) -> bool:
        """True if the judge is behind an endpoint."""
        return self.judge.startswith(("http://", "https://"))


class ScoreSettings(JudgeSettings):
    """Options of scoring."""

    samples: Path = Field(description="file of samples")
    out: Path = Field(description="file of scores, JSON lines; the judge's journal stands beside it")
    sound_only: bool = Field(
        default=False,
        description="judge only answers without a counted fault; the others get 0 (for prefer --sound-only)",
    )


async def score(settings: ScoreSettings) -> dict[str, Any]:
    """Score, write the file, and return figures of the run. Cancelling it loses only the requests under way.

    The same answer to a prompt is judged once.

    Raises:
        PastaError: The samples or the judge cannot be used; replies that arrived are kept.
    """
    prompts = await asyncio.to_thread(lambda: [*read_samples(settings.samples)])
    samples = [(prompt, sample) for prompt in prompts for sample in prompt.samples]
    # Soundness by prompt and number; with --sound-only a sample that has a fault is not judged, and gets 0.
    sound = {(p.id, s.number): soundness(faults_of_sample(s, p)) for p, s in samples}
    least = 1.0 if settings.sound_only else 0.0
    # The answers to judge, with their prompts: samples with the same text share a verdict.
    answers: dict[tuple[str, str], SampledPrompt] = {}
    for prompt in prompts:
        judged = [sample for sample in prompt.samples if sound[prompt.id, sample.number] >= least]
        asked = prompt.model_copy(update={"samples": judged})
        answers |= {(prompt.id, sample.text): asked for sample in judged}
    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, journal_beside(settings.out), stack)
        qualities, failures = await collect(
            answers, lambda answer: judge.quality(answers[answer], answer[1]), settings.together
        )
    scores: list[Score] = []
    for prompt, sample in samples:
        if (prompt.id, sample.text) in failures:
            continue
        sample_soundness = sound[prompt.id, sample.number]
        quality = qualities.get((prompt.id, sample.text), 0.0) if sample_soundness >= least else 0.0
        plain = prompt.baseline
        tokens = plain.tokens if judge.sees_faults else sequential_tokens(sample.text_tokens, plain.tokens)
        speedup = tokens / sample.critical_path if sample.critical_path else 1.0
        factor = 1.0 if judge.sees_faults else sample_soundness
        scores.append(
            Score(
                id=prompt.id,
                number=sample.number,
                speedup=speedup,
                ended="length" not in (plain.finish_reason, sample.finish_reason),
                quality=quality * factor,
            )
        )
    write_records(settings.out, scores)
    speedups = [score.speedup for score in scores if score.ended and score.speedup]
    summary = {
        "prompts": len(prompts),
        "samples": len(samples),
        "scored": len(scores),
        "mean_quality": fmean([score.quality for score in scores] or [0.0]),
        "geometric_mean_speedup": geometric_mean(speedups or [1.0]),
        "failures": dict(Counter(failures.values()).most_common()),
    }
    return {**summary, **judge.endpoint.totals} if isinstance(judge, PairwiseJudge) else summary


async def open_judge(settings: JudgeSettings, journal: Path, stack: AsyncExitStack) -> Judge:
    """The judge that the settings name; what it opens is closed by the stack.

    Raises:
        InvalidRequestError: There is no such judge, or the journal has the replies of another one.
    """
    if settings.judge == "likelihood":
        from pasta_async.training.likelihood import LanguageModel, LikelihoodJudge, read_by  # needs torch

        model = LanguageModel(settings.judge_model, settings.dtype)
        identity = {"judge": "likelihood", **read_by(settings.judge_model, settings.dtype)}
        return LikelihoodJudge(model, stack.enter_context(Journal(journal, identity)))
    if not settings.remote:
        arguments: list[Any] = []
        if model := settings.judge_model:
            folder = await asyncio.to_thread(Path(model).is_dir)
            identity = {"judge": settings.judge, "model": model_digest(model) if folder else model}
            arguments = [model, stack.enter_context(Journal(journal, identity))]
        try:
            make_judge = pkgutil.resolve_name(settings.judge)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidRequestError(f"--judge {settings.judge} is not there: {error}") from error
        return make_judge(*arguments)
    identity = {"judge": settings.judge, "model": settings.judge_model}
    verdicts = stack.enter_context(Journal(journal, identity))
    fields = {"temperature": 0.0, "max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    endpoint = Endpoint(settings.judge, settings.judge_model, settings, verdicts, **fields)
    return PairwiseJudge(await stack.enter_async_context(endpoint))


main: Command = command(ScoreSettings, score, "pasta_async.training.score", __doc__, resumes=True)

if __name__ == "__main__":
    main()
