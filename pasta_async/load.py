"""How busy an engine is, and how many answers and threads it is worth decoding at once. No asyncio, no I/O.

A decode step takes a fixed time, above all to read the weights, and some more for each request in it and for
each token of context that it attends to. An answer in parallel needs fewer steps, and more tokens: its tags,
and what joins prefill again; but its threads have less context than the same text has in sequence. While
little runs, steps are what costs; a full engine does not care how many steps there are, but what a token
takes makes all answers wait. So parallel decoding of one of n answers pays while

    fixed * steps saved
        >  n * (per request * tokens added + prefill * tokens prefilled again - per context * context saved)

and all of it is measured: the step times by the engine (`/v1/loads` of SGLang, which does not tell what
context takes, and the embedded scheduler), the tokens by the client's own answers. TAPER (arXiv 2605.06914)
weighs the same from inside of an engine, at every step; from outside it is weighed when an answer starts and
at each promise.

Where answers arrive at a rate, n is not given: answers of so many steps and tokens take
`fixed * steps / (1 - rate * per request * tokens)` each, and n is that times the rate. Whichever form n is
counted in, the inequality then says which form is sooner, so arrivals need no rule of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MOST_KV = 0.9
"""Share of the KV cache in use from which on nothing is decoded in parallel: what comes would evict."""

MOST_ANSWERS = 0.75
"""Answers that are worth decoding in parallel for each request that is decoded at once, at most: with more,
each has hardly more than one thread, and its tags take the places of others."""

UNSURE_ANSWERS = 16
"""So many answers are worth decoding in parallel while an engine that times its steps has timed too few, or
nothing at all is known of it."""

ALWAYS_ANSWERS, ALWAYS_THREADS = 2, 16
"""So many answers, and threads of all answers, are no load whatever was measured."""

THREADS = 3
"""Threads that there is room for, for each answer that is worth decoding in parallel: most answers have no
more at a time, and those of the others do not crowd the batch."""

_SURE_STEPS, _SURE_SPREAD = 64, 0.25
"""Steps, and variance of the requests in them, from which on step times are trusted."""

_SAME = 0.05
"""Share of the context's variance that requests have to leave unexplained for it to have its own slope."""

_MEMORY = 8192
"""Steps that sums over steps are about: older ones are forgotten bit by bit."""


class StepCost(NamedTuple):
    """Seconds that a decode step takes."""

    fixed: float
    per_request: float
    per_context: float
    """For each token that its requests attend to."""


class StepTimes(NamedTuple):
    """Sums over an engine's decode steps, those that prefilled nothing.

    As `decode_moments` of SGLang 0.5.23 (managers/scheduler.py, `_accumulate_decode_moment`), in seconds.
    """

    steps: float
    requests: float
    seconds: float
    squares: float
    """Of the requests in a step."""
    products: float
    """Of requests and seconds of a step."""
    context: float = 0.0
    """Tokens that the requests of a step attended to. SGLang does not say; then these four are 0."""
    context_squares: float = 0.0
    context_requests: float = 0.0
    """Products of context and requests of a step."""
    context_products: float = 0.0
    """Of context and seconds of a step."""

    def fit(self) -> StepCost | None:
        """What a step takes, by least squares; None while that is not certain."""
        if self.steps < _SURE_STEPS:
            return None
        requests, context, seconds = (x / self.steps for x in (self.requests, self.context, self.seconds))
        spread = self.squares / self.steps - requests**2
        if spread < _SURE_SPREAD:
            return None
        slopes = _slopes(
            spread,
            self.context_squares / self.steps - context**2,
            self.context_requests / self.steps - context * requests,
            self.products / self.steps - requests * seconds,
            self.context_products / self.steps - context * seconds,
        )
        return StepCost(max(0.0, seconds - slopes[0] * requests - slopes[1] * context), *slopes)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is, as it says itself."""

    capacity: int
    """Requests that it decodes at once, at most."""
    running: int = 0
    """Requests that it decodes or prefills."""
    queued: int = 0
    kv_use: float = 0.0
    """Share of its KV cache that requests hold; what is only cached does not count."""
    steps: StepTimes | None = None
    """None if it does not say, or has not decoded yet."""
    prefill: float = 0.0
    """Seconds that a token of a prompt takes; 0 if it is not known."""
    replicas: int = 1
    """Copies of the model among which this is divided evenly (data parallelism); `steps` is of any one."""
    engine: str = ""
    """Which of several engines it is."""


class RecentSums:
    """So many sums over an engine's latest steps; the first one counts the steps."""

    def __init__(self, size: int) -> None:
        self.sums: list[float] = [0.0] * size

    def add(self, steps: float, *sums: float) -> None:
        """Count so many further steps, over which the others are these."""
        older = max(0.0, _MEMORY - steps)
        keep = older / self.sums[0] if self.sums[0] > older else 1.0
        self.sums = [keep * one + more for one, more in zip(self.sums, (steps, *sums), strict=True)]


class StepMeter:
    """Takes the time of an engine's steps."""

    def __init__(self) -> None:
        self._decoding = RecentSums(len(StepTimes._fields))
        self._mixed = RecentSums(5)  # steps, requests, context, seconds, prefilled tokens

    def add(self, requests: int, context: int, prefilled: int, seconds: float) -> None:
        """Count a step that took so many seconds.

        It decoded a token for each of its requests, which attended to so many tokens of context together, and
        computed so many tokens of prompts.
        """
        if prefilled:
            self._mixed.add(1, requests, context, seconds, prefilled)
        elif requests:
            by_requests = (requests**2, requests * seconds)
            by_context = (context, context**2, context * requests, context * seconds)
            self._decoding.add(1, requests, seconds, *by_requests, *by_context)

    @property
    def steps(self) -> StepTimes:
        """Of the steps that only decoded."""
        return StepTimes(*self._decoding.sums)

    @property
    def prefill(self) -> float:
        """Seconds that a prompt's token adds to a step; 0 while that is not known."""
        steps, requests, context, seconds, tokens = self._mixed.sums
        cost = self.steps.fit()
        if not cost or not tokens:
            return 0.0
        decoding = cost.fixed * steps + cost.per_request * requests + cost.per_context * context
        return max(0.0, (seconds - decoding) / tokens)


def _slopes(
    requests: float, context: float, both: float, of_requests: float, of_context: float
) -> tuple[float, float]:
    """What a step's time goes up by, for a request and for a token of context; neither is below 0.

    It is given the variances of a step's requests and of their context, the covariance of both, and that of
    each with the seconds.
    """
    independent = requests * context - both**2
    if independent <= _SAME * requests * context:  # the requests' slope is about both
        return max(0.0, of_requests / requests), 0.0
    per_request = (of_requests * context - of_context * both) / independent
    per_context = (of_context * requests - of_requests * both) / independent
    if per_request < 0:
        return 0.0, max(0.0, of_context / context)
    if per_context < 0:
        return max(0.0, of_requests / requests), 0.0
    return per_request, per_context


class Payoff:
    """What parallel answers save and what they add, by the latest hundred or so of them.

    It begins with one: the mean of AlpacaEval's reference answers, annotated by structure (docs/speed.md),
    where forks share their parent's keys and values. Elsewhere that is too good, which parallel answers soon
    tell. Plain answers tell nothing, so where the answers of late are why there is no tag, one in a while is
    to be tried all the same.
    """

    _KEEP = 0.99
    _TRIAL = 32

    def __init__(self) -> None:
        self._refused = 0
        self.saved: float = 160.0
        """Steps: tokens of the text that are not on the critical path."""
        self.added: float = 63.0
        """Tokens decoded beside the text."""
        self.prefilled: float = 200.0
        """Context tokens computed, beside those of the prompt."""
        self.context: float = 41_000.0
        """Tokens of context that fewer were attended to, over all tokens of an answer."""

    def learn(self, *, saved: float, added: float, prefilled: int, context: float) -> None:
        """Count an answer that was decoded in parallel."""
        self._forget()
        self.saved += saved
        self.added += added
        self.prefilled += prefilled
        self.context += context

    def refuse(self) -> bool:
        """Count an answer that this alone keeps from being decoded in parallel; False: it is to be tried.

        What is known becomes less with each, so that those that are tried weigh more.
        """
        self._forget()
        self._refused = (self._refused + 1) % self._TRIAL
        return self._refused > 0

    def _forget(self) -> None:
        self.saved *= self._KEEP
        self.added *= self._KEEP
        self.prefilled *= self._KEEP
        self.context *= self._KEEP

    def answers(self, load: EngineLoad) -> float:
        """Up to how many answers at once parallel decoding pays; infinity if the engine times no steps."""
        if load.steps is None:
            return float("inf")
        if (step := load.steps.fit()) is None:
            return UNSURE_ANSWERS
        tokens = step.per_request * max(0.0, self.added) + load.prefill * max(0.0, self.prefilled)
        cost = tokens - step.per_context * self.context
        gain = step.fixed * max(0.0, self.saved)
        return load.replicas * gain / cost if cost > 0 else float("inf")


class Room(NamedTuple):
    """What an engine has room for."""

    answers: float
    """Up to so many at once, one more is worth decoding in parallel."""
    threads: float
    """Of all answers; each has one of its own whatever there is room for."""

    def takes(self, at_once: float) -> bool:
        """Whether an answer is worth decoding in parallel, so many counted, itself among them."""
        return at_once <= self.answers

    def extra(self, at_once: float) -> float:
        """How many threads may decode beside the one that each of so many answers has."""
        return max(0.0, self.threads - at_once)


def room(load: EngineLoad | None, payoff: Payoff) -> Room:
    """What an engine has room for; None is one of which nothing is known.

    The fuller it is, the less; an engine that has nothing to do takes an answer at full width.
    """
    if load is None:
        return Room(UNSURE_ANSWERS, ALWAYS_THREADS)
    if load.kv_use >= MOST_KV:
        return Room(0, 0)
    answers = max(ALWAYS_ANSWERS, min(payoff.answers(load), MOST_ANSWERS * load.capacity))
    return Room(answers, max(ALWAYS_THREADS, min(THREADS * answers, load.capacity)))
