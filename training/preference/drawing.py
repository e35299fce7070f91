"""Draw several answers to each prompt, so that an interruption loses only what was under way."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta_async.errors import PastaError
from pasta_async.jobs import for_each
from pasta_async.training.corpus.record import digest
from pasta_async.training.patience import Patience
from pasta_async.training.preference.recording import trie_of
from pasta_async.training.preference.samples import Plain, Sample, SampledPrompt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pasta_async.client import Client
    from pasta_async.jobs import Journal
    from pasta_async.protocol import ModelInfo
    from pasta_async.results import Generation
    from pasta_async.sampling import Sampling
    from pasta_async.training.corpus import Record
    from pasta_async.training.preference.recording import Exchange, Recording

__all__ = ["Draw", "answer_seed"]

_Key = tuple[str, int | None]
"""The digest of a prompt, and the number of a sample or None for the baseline's answer."""


def answer_seed(seed: int, prompt: str, number: int) -> int:
    """The seed of an answer: a hash of the run's seed, the prompt's id and the answer's number, 63 bits."""
    hashed = hashlib.sha256(f"{seed}/{number}/{prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "big") >> 1


@dataclass(slots=True)
class Draw:
    """One run over some prompts.

    Args:
        client: Draws the samples; its backend is `recording`.
        recording: Notes them.
        baseline: Draws the baseline's answers.
        journal: Keeps what is done; that is not drawn again. Answers that ended in an error are.
        n: Samples of a prompt.
        sampling: Of every answer; the baseline's is greedy.
        seed: From which every answer has its own, where the backend honours seeds.
        template_kwargs: Passed to the chat template.
        on_progress: Called after each answer.
    """

    client: Client
    recording: Recording
    baseline: Client
    journal: Journal
    n: int
    sampling: Sampling
    seed: int = 0
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    on_progress: Callable[[], None] = lambda: None
    totals: Counter[str] = field(default_factory=Counter[str])
    """answers (done by this run), resumed (found in the journal), tokens (of this run)."""
    failures: list[str] = field(default_factory=list[str])
    """What ended answers, of those that an error ended."""
    _samples: dict[_Key, Sample] = field(default_factory=dict[_Key, Sample])
    _plain: dict[_Key, Plain] = field(default_factory=dict[_Key, Plain])
    _patience: Patience = field(default_factory=lambda: Patience(proven=True))

    async def run(self, records: Sequence[Record], together: int) -> list[SampledPrompt]:
        """Draw for every record, at most `together` answers at a time.

        A prompt whose baseline failed is left out. Cancelling it cancels what is under way.

        Raises:
            PastaError: The backend cannot be used, or failed many answers in a row.
        """
        info = await self.client.connect()
        self._resume()
        # Baselines first: few at a time beside the samples, they would cost another model as much as these.
        everything: list[tuple[Record, int | None]] = [(record, None) for record in records]
        everything += [(record, number) for record in records for number in range(self.n)]
        due = [one for one in everything if _key(*one) not in self._samples and _key(*one) not in self._plain]
        self.totals["resumed"] = len(everything) - len(due)
        self.on_progress()

        async def draw(one: tuple[Record, int | None]) -> None:
            record, number = one
            await (self._draw_plain(record) if number is None else self._draw(record, number, info))
            self.totals["answers"] += 1
            self.on_progress()

        await for_each(due, draw, together)
        return [self._prompt(record) for record in records if _key(record, None) in self._plain]

    def _resume(self) -> None:
        for row in self.journal.rows:
            key = (row["prompt"], row["number"])
            if row["number"] is None:
                self._plain[key] = Plain.model_validate(row["answer"])
            else:
                self._samples[key] = Sample.model_validate(row["answer"])

    def _prompt(self, record: Record) -> SampledPrompt:
        samples = (self._samples[_key(record, number)] for number in range(self.n))
        baseline = self._plain[_key(record, None)]
        return SampledPrompt(
            id=record.id, messages=record.messages, samples=tuple(samples), baseline=baseline
        )

    async def _draw(self, record: Record, number: int, info: ModelInfo) -> None:
        seed = answer_seed(self.seed, record.id, number) if info.honours_seeds else None
        error = ""
        with self.recording.noted() as exchanges:
            try:
                generation = await self.client.generate(
                    record.messages,
                    sampling=self.sampling.model_copy(update={"seed": seed}),
                    chat_template_kwargs=self.template_kwargs,
                    whole_chunks=True,  # nobody watches
                )
            except PastaError as failure:
                error, generation = self._failed(failure), failure.partial
        sample = _sample(number, seed, generation, exchanges, error, tagged=info.tags is not None)
        self._samples[_key(record, number)] = sample
        self.totals["tokens"] += sample.tokens
        if not error:
            self._keep(record, number, sample)

    async def _draw_plain(self, record: Record) -> None:
        greedy = self.sampling.model_copy(update={"temperature": 0.0})
        try:
            generation = await self.baseline.generate(
                record.messages, sampling=greedy, baseline=True, chat_template_kwargs=self.template_kwargs
            )
        except PastaError as failure:
            self._failed(failure)
            return
        plain = Plain(text=generation.text, tokens=generation.usage.completion_tokens)
        self._plain[_key(record, None)] = plain
        self.totals["tokens"] += plain.tokens
        self._keep(record, None, plain)

    def _keep(self, record: Record, number: int | None, answer: Sample | Plain) -> None:
        self._patience.succeeded()
        prompt, _ = _key(record, number)
        self.journal.append({"prompt": prompt, "number": number, "answer": answer.model_dump(mode="json")})

    def _failed(self, error: PastaError) -> str:
        """The reason, noted; raises the error if the backend seems to be dead."""
        self._patience.failed(error)
        reason = f"{type(error).__name__}: {error}"
        self.failures.append(reason)
        return reason


def _key(record: Record, number: int | None) -> _Key:
    return digest(record.messages, record.id), number


def _sample(
    number: int,
    seed: int | None,
    generation: Generation | None,
    exchanges: Sequence[Exchange],
    error: str,
    *,
    tagged: bool,
) -> Sample:
    """An answer, or the part of one that an error left, as it is stored."""
    if generation is None:
        return _nothing(number, seed, error)
    superseded = [record.thread for record in generation.threads if record.finish_reason == "superseded"]
    trie = trie_of(exchanges, superseded)
    tokens = generation.usage.completion_tokens
    return Sample(
        number=number,
        seed=seed,
        text=generation.text,
        written=generation.document.format(),
        finish_reason=generation.finish_reason,
        error=error,
        well_formed=generation.finish_reason == "stop" and not generation.diagnostics,
        tokens=tokens,
        critical_path=generation.critical_path,
        threads=generation.threads,
        ids=tuple(trie.ids),
        parents=tuple(trie.parents),
        targets=tuple(trie.targets),
        exact=tagged and not error and not superseded and len(trie.targets) == tokens,
    )


def _nothing(number: int, seed: int | None, error: str) -> Sample:
    return Sample(
        number=number,
        seed=seed,
        text="",
        written="",
        finish_reason="error",
        error=error,
        well_formed=False,
        tokens=0,
        critical_path=0,
        threads=(),
        ids=(),
        parents=(),
        targets=(),
        exact=False,
    )
