"""What a run of annotation came to."""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

from pasta_async.evals.statistics import geometric_mean, quantile
from pasta_async.training.corpus.tokens import text_speedup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pasta_async.lang import Document
    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["Parallelism", "Summary", "count_reasons", "measure"]

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


class Parallelism(BaseModel):
    """How much of some annotated answers can be decoded in parallel."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    answers: int
    any_share: float
    """Share of answers with a promise."""
    promises: float
    """Mean promises of an answer that has any."""
    mean_speedup: float
    """Theoretical speed-up (tokens of the answer / critical path with tags), mean over all answers."""
    geometric_mean_speedup: float
    geometric_mean_any: float
    """Over the answers that have a promise."""
    quantiles: dict[str, float]
    """Of the speed-ups of all answers, by percentile."""

    def __str__(self) -> str:
        spread = ", ".join(f"{name} {value:.2f}" for name, value in self.quantiles.items())
        return (
            f"{self.any_share:.1%} of {self.answers} answers have promises, {self.promises:.1f} each;\n"
            f"theoretical speed-up {self.geometric_mean_speedup:.3f} in the geometric mean, mean "
            f"{self.mean_speedup:.3f}, where there is a promise {self.geometric_mean_any:.3f}; {spread}"
        )


class Summary(BaseModel):
    """The figures of a run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    annotator: str
    accepted: int
    rejected: int
    unasked: int
    """Of those accepted: answers too short to gain anything, for which nobody was asked."""
    unanswered: int
    """Records for which the endpoint failed; the same command asks again."""
    reasons: dict[str, int]
    """Replies that did not pass, by reason (the first of each), tried again or not."""
    requests: int
    """Sent by this run, without the client's own retries."""
    resumed: int
    """Replies that were in the journal already."""
    prompt_tokens: int
    completion_tokens: int
    """Of all replies, also those of earlier runs."""
    seconds: float
    left_out: str
    """What the data lost before: repeated or leaking evaluation prompts."""
    parallelism: Parallelism | None
    """Of what was accepted."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {name}" for name, count in self.reasons.items()) or "none"
        lines = [
            f"{self.accepted} accepted ({self.unasked} short ones unasked), {self.rejected} rejected, "
            f"{self.unanswered} unanswered; {self.left_out}",
            f"replies that did not pass: {reasons}",
            f"{self.requests} requests in {self.seconds:.0f} s, {self.resumed} replies from the journal; "
            f"{self.prompt_tokens} prompt and {self.completion_tokens} reply tokens in all",
        ]
        return "\n".join([*lines, str(self.parallelism)] if self.parallelism else lines)


def measure(documents: Sequence[Document], count: CountTokens) -> Parallelism | None:
    """The parallelism of annotated answers; None if there are none that say anything."""
    pairs = [(text_speedup(document, count), len(document.promises)) for document in documents]
    speedups = [speedup for speedup, _ in pairs if speedup > 0]
    if not speedups:
        return None
    parallel = [speedup for speedup, promises in pairs if promises and speedup > 0]
    return Parallelism(
        answers=len(documents),
        any_share=len(parallel) / len(documents),
        promises=mean([promises for _, promises in pairs if promises] or [0]),
        mean_speedup=mean(speedups),
        geometric_mean_speedup=geometric_mean(speedups),
        geometric_mean_any=geometric_mean(parallel) if parallel else 1.0,
        quantiles={f"p{100 * share:.0f}": quantile(speedups, share) for share in _QUANTILES},
    )


def count_reasons(failures: Iterable[Sequence[str]]) -> dict[str, int]:
    """How often each code comes first among the reasons of a failure, the most frequent first."""
    return dict(Counter(_code(reasons[0]) for reasons in failures if reasons).most_common())


def _code(reason: str) -> str:
    """The code of a reason; a diagnostic has its line and column before it."""
    return next((part for part in reason.split(": ") if not part[:1].isdigit()), reason)
