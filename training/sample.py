"""Draw answers for stage 2: `python -m pasta_async.training.sample`.

Draws n answers to each prompt, and the baseline's answer, into a file of
`pasta_async.training.samples.SampledPrompt`. Its journal stands beside it: the same command
resumes an interrupted run.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from pasta_async import Client, Limits
from pasta_async.backends import WrappingBackend
from pasta_async.cli.command import Command, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.protocol import Backend, DecodeRequest, Piece
from pasta_async.results import Generation
from pasta_async.training.data.corpus import PartSettings, Record, digest, read_records, write_records
from pasta_async.training.jobs import Journal, collect, journal_beside
from pasta_async.training.model_digest import backend_digest
from pasta_async.training.samples import Plain, Sample, SampledPrompt
from pasta_async.training.views import Trie

Kind = int | Literal["baseline"]
"""One answer to a prompt: the number of a sample, or the baseline's plain answer."""

_LONGEST_STRETCH = 40  # tokens of what a loop says again and again
_LEAST_REPEATED = 32  # tokens that are repeated, at the least, and three times the stretch

_MAY_CHANGE = {"prompts", "skip", "limit", "out", "n", "together"}
"""Settings that no answer depends on: with other ones the same journal goes on."""


class DrawSettings(PartSettings):
    """Options of drawing plain answers and samples."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    prompts: tuple[Path, ...] = Field(min_length=1, description="files of records with prompts to answer")
    seed: int = Field(default=0, description="every answer has its own, derived from this one")
    together: Count = Field(default=64, description="answers at the same time")


class SampleSettings(DrawSettings):
    """Options of drawing samples."""

    out: Path = Field(description="file of samples, JSON lines; its journal stands beside it")
    n: int = Field(default=10, ge=0, description="answers to each prompt, beside the baseline's")
    without_syncs: int = Field(
        default=0,
        ge=0,
        description="number of the n without <sync/>: where waiting is worth nothing, these win",
    )
    max_tokens: int = Field(default=2048, ge=1, description="of an answer, tags counted")
    temperature: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="of the samples; stage 2's theory is about 1, small models want less",
    )
    plain_temperature: float = Field(default=0.0, ge=0, le=10, description="of plain answers (0: greedy)")
    repetition_penalty: float | None = Field(
        default=None, ge=0.01, le=2, description="of all answers; default: the model's own"
    )
    baseline: str = Field(default="", description="backend of the baseline's answers (default: the same)")


async def sample(settings: SampleSettings) -> dict[str, Any]:
    """Draw, write the file, and return figures of the run. Cancelling it loses only the answers under way.

    Raises:
        PastaError: The prompts or a backend cannot be used; answers that were drawn are kept.
    """
    records = _records(settings)
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        drawing = await _open_drawing(settings, stack)
        failures = await drawing.run(records)
    prompts = drawing.prompts(records)
    write_records(settings.out, prompts)
    samples = [answer for prompt in prompts for answer in prompt.samples]
    return {
        "prompts": len(prompts),
        "left_out": len(records) - len(prompts),
        "samples": len(samples),
        "well_formed": sum(answer.well_formed for answer in samples),
        "exact": sum(answer.exact for answer in samples),
        "failures": dict(Counter(failures).most_common()),
        "resumed": drawing.totals["resumed"],
        "tokens": drawing.totals["tokens"],
        "seconds": round(time.monotonic() - started, 3),
    }


def _records(settings: SampleSettings) -> list[Record]:
    """The prompts to answer: those of all files, from `skip` to `limit`."""
    records = [record for path in settings.prompts for record in read_records(path)]
    ids = Counter(record.id for record in records)
    if repeated := [name for name, count in ids.items() if count > 1]:
        raise InvalidRequestError(f"the prompt {repeated[0]!r} is in more than one file")
    wanted = list(settings.part(records))
    if not wanted:
        behind = f" behind the first {settings.skip}" if settings.skip else ""
        raise InvalidRequestError(f"no prompts in {', '.join(map(str, settings.prompts))}{behind}")
    return wanted


async def _open_drawing(settings: SampleSettings, stack: AsyncExitStack) -> Drawing:
    """Open the backends and the journal; the stack closes them."""
    client = await stack.enter_async_context(Client(settings.backend))
    baseline = client
    if settings.baseline:
        baseline = await stack.enter_async_context(Client(settings.baseline))
    identity = {
        **settings.model_dump(mode="json", exclude=_MAY_CHANGE),
        "models": [(await client.connect()).name, (await baseline.connect()).name],
        "weights": [backend_digest(settings.backend), backend_digest(settings.baseline)],
    }
    journal = stack.enter_context(Journal(journal_beside(settings.out), identity))
    return Drawing(settings, client.backend, baseline.backend, journal)


def answer_seed(seed: int, prompt: str, kind: Kind) -> int:
    """The seed of an answer: a hash of the run's seed, the prompt's id and which answer it is, 63 bits."""
    hashed = hashlib.sha256(f"{seed}/{kind}/{prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "big") >> 1


class Exchange(NamedTuple):
    """A request, and the ids that its reader has taken."""

    request: DecodeRequest
    output: list[int]


class Recording(WrappingBackend):
    """A backend that records the requests of one answer to another one, and the ids that come back.

    A model can write the same text in other tokens than those it is encoded as, and the objective is about
    the probability of the sampled tokens. For the same reason no grammar chooses tags in the model's place.
    Besides the ids that a request bans itself, the `banned` ones may not be chosen. If `ends_loops`, a
    request that loops ends as if a limit had cut it, and `looped` says so: such a sample is never the best,
    and only takes time.
    """

    def __init__(self, inner: Backend, banned: tuple[int, ...] = (), *, ends_loops: bool = False) -> None:
        super().__init__(inner)
        self.exchanges: list[Exchange] = []
        """In the order of sending."""
        self.looped: bool = False
        self._banned = banned
        self._ends_loops = ends_loops

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode, recording every id that is handed out.

        Closing the generator or cancelling its reader closes the inner backend's, which aborts the request.
        """
        banned = (*request.banned_ids, *self._banned)
        request = replace(request, banned_ids=banned, tag_grammar=None)
        exchange = Exchange(request, [])
        self.exchanges.append(exchange)
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                exchange.output.extend(piece.ids)
                if self._ends_loops and not piece.finish_reason and _loops(exchange.output):
                    self.looped = True
                    yield piece._replace(finish_reason="length")
                    return
                yield piece


def trie_of(exchanges: Iterable[Exchange]) -> Trie:
    """The contexts of an answer's requests with sampled ids as targets, main first, then thread by thread.

    It is the same for one request of main, and for a new one behind every promise.
    """
    trie = Trie()
    for exchange in sorted(exchanges, key=lambda exchange: exchange.request.thread):
        if exchange.output:
            trie.extend(trie.extend(-1, exchange.request.ids), exchange.output, target=True)
    trie.targets = sorted(set(trie.targets))  # a request that was repeated after a failure has the same ones
    return trie


class Drawing:
    """One run over some prompts, whose answers `backend` samples, and `baseline` writes plainly.

    The journal keeps finished answers, which are not drawn again; those that failed are.
    """

    def __init__(
        self, settings: SampleSettings, backend: Backend, baseline: Backend, journal: Journal
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._baseline = baseline
        self._journal = journal
        self._answers: dict[tuple[str, Kind], Any] = {
            (row["prompt"], row["kind"]): row["answer"] for row in journal.rows
        }
        self.totals: Counter[str] = Counter()
        """Counts of this run: answers and tokens that were drawn, and answers from the journal (resumed)."""

    async def run(self, records: Sequence[Record]) -> list[str]:
        """Draw the answers to every record; returns the errors of those that failed.

        Cancelling it cancels the answers under way.

        Raises:
            PastaError: The backend cannot be used, or failed many answers in a row.
        """
        # Baselines first: beside the samples, few at a time, they would take as long as those.
        numbers = range(len(records))
        wanted: list[tuple[int, Kind]] = [(number, "baseline") for number in numbers]
        wanted += [(number, sample) for number in numbers for sample in range(self._settings.n)]

        async def draw(item: tuple[int, Kind]) -> None:
            number, kind = item
            if (_key(records[number]), kind) in self._answers:
                self.totals["resumed"] += 1
            else:
                await self._draw(records[number], kind)

        _, failures = await collect(wanted, draw, self._settings.together)
        return list(failures.values())

    def prompts(self, records: Sequence[Record]) -> list[SampledPrompt]:
        """The prompts with their answers. One whose baseline failed is left out."""
        prompts: list[SampledPrompt] = []
        for record in records:
            kinds = ((_key(record), number) for number in range(self._settings.n))
            samples = [self._answers[kind] for kind in kinds if kind in self._answers]
            if baseline := self._answers.get((_key(record), "baseline")):
                asked = record.model_dump(include={"id", "messages", "form"})
                answers = {"samples": samples, "baseline": baseline}
                prompts.append(SampledPrompt.model_validate({**asked, **answers}))
        return prompts

    async def _draw(self, record: Record, kind: Kind) -> None:
        """Draw one answer and keep it."""
        settings = self._settings
        plain = kind == "baseline"
        backend = self._baseline if plain else self._backend
        info = await backend.connect()
        temperature = settings.plain_temperature if plain else settings.temperature
        seed = answer_seed(settings.seed, record.id, kind) if temperature and info.honours_seeds else None
        syncless = kind != "baseline" and kind < settings.without_syncs
        banned = (info.tags.sync,) if info.tags and syncless else ()
        recording = Recording(backend, banned, ends_loops=not plain)
        generation = await Client(recording, limits=Limits(timeout=None)).generate(
            record.messages,
            temperature=temperature,
            repetition_penalty=settings.repetition_penalty,
            max_tokens=settings.max_tokens,
            seed=seed,
            baseline=plain,
            parallel="always",
        )
        if kind == "baseline":
            answer = Plain(
                text=generation.text,
                tokens=generation.usage.completion_tokens,
                finish_reason=generation.finish_reason,
            )
        else:
            answer = _sample(kind, seed, generation, recording, info.tags is not None)
        self.totals.update(answers=1, tokens=answer.tokens)
        row = {"prompt": _key(record), "kind": kind, "answer": answer.model_dump(mode="json")}
        self._answers[_key(record), kind] = row["answer"]
        self._journal.append(row)


def _key(record: Record) -> str:
    return digest(record.messages, record.id)


def _sample(
    number: int, seed: int | None, generation: Generation, recording: Recording, tagged: bool
) -> Sample:
    """An answer as it is stored; `tagged` says whether the model has the tags."""
    # A promise that was taken back was decoded, and is not in the answer. If a limit cut an answer with
    # threads, some of its decoded tokens are behind the cut.
    cut = generation.finish_reason == "length" and len(generation.threads) > 1
    dropped = cut or generation.usage.discarded_tokens > 0
    trie = trie_of(recording.exchanges)
    tokens = generation.usage.completion_tokens
    return Sample(
        number=number,
        seed=seed,
        text=generation.text,
        written=generation.document.format(),
        finish_reason=generation.finish_reason,
        well_formed=generation.well_formed and not recording.looped,
        tokens=tokens,
        text_tokens=generation.text_tokens,
        critical_path=generation.critical_path,
        cut=tuple(thread.thread for thread in generation.threads if thread.was_cut),
        ids=tuple(trie.ids),
        parents=tuple(trie.parents),
        targets=tuple(trie.targets),
        exact=tagged and not dropped and len(trie.targets) == tokens,
    )


def _loops(ids: Sequence[int]) -> bool:
    """True if the last tokens say one stretch four times, a short one more often."""

    def repeats(size: int) -> bool:
        repeated = max(3 * size, _LEAST_REPEATED)
        return len(ids) >= repeated + size and ids[-repeated:] == ids[-repeated - size : -size]

    return any(map(repeats, range(1, _LONGEST_STRETCH + 1)))


main: Command = command(SampleSettings, sample, "pasta_async.training.sample", __doc__, resumes=True)

if __name__ == "__main__":
    main()
