"""Draw answers for stage 2: `python -m pasta_async.training.sample`.

Draws n answers to each prompt, and the baseline's answer, into a file of
`pasta_async.training.preference.SampledPrompt`. Its journal stands beside it: the same command
resumes an interrupted run.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, Json

from pasta_async import Client
from pasta_async.backends import WrappingBackend
from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.jobs import Advance, Journal, for_each, journal_beside, progress
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async.results import Generation
from pasta_async.training.corpus import PartSettings, Record, digest, read_records, write_records
from pasta_async.training.endpoint import FailureBudget
from pasta_async.training.identity import backend_digest
from pasta_async.training.packing import Trie
from pasta_async.training.preference import Plain, Sample, SampledPrompt

_OWN, _BASELINE = -1, -2
"""Stand for the number of the model's own plain answer, where the baseline is another model; and in seeds for
the baseline's."""


class SampleSettings(PartSettings):
    """How to draw."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    prompts: tuple[Path, ...] = Field(min_length=1, description="files of records with prompts to answer")
    out: Path = Field(description="file of samples, JSON lines; its journal stands beside it")
    n: int = Field(default=10, ge=0, description="answers to each prompt, beside the baseline's")
    without_syncs: int = Field(
        default=0, ge=0, description="so many of the n have no <sync/>: the scores say what waiting is worth"
    )
    max_tokens: int = Field(default=2048, ge=1, description="of an answer, tags counted")
    temperature: float = Field(
        default=1.0, gt=0, description="of the samples; stage 2's theory is about 1, small models want less"
    )
    plain_temperature: float = Field(default=0.0, ge=0, description="of plain answers (0: greedy)")
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=2, description="of all answers; default: the model's own"
    )
    seed: int = Field(default=0, description="every answer has its own, derived from this one")
    together: int = Field(default=64, ge=1, description="answers at the same time")
    baseline: str = Field(default="", description="backend of the baseline's answers (default: the same)")
    own_plain: bool = Field(
        default=False, description="this model's plain answers beside another baseline's, for --keep-plain"
    )
    unseen: tuple[Path, ...] = Field(
        default=(), description="files of records that the model was trained on: their prompts are left out"
    )
    template_kwargs: Json[dict[str, Any]] = Field(
        default={}, description='further values for the chat template, as JSON: {"enable_thinking": false}'
    )


async def sample(settings: SampleSettings) -> dict[str, Any]:
    """Draw, write the file, and return figures of the run. Cancelling it loses only the answers under way.

    Raises:
        PastaError: The prompts or a backend cannot be used; answers that were drawn are kept.
    """
    records = _records(settings)
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        drawing = await _drawing(settings, stack)
        each = settings.n + 1 + bool(settings.own_plain and settings.baseline)
        advance = stack.enter_context(progress(len(records) * each, "answers"))
        await drawing.run(records, advance)
        prompts = write_records(settings.out, drawing.prompts(records))
    found = drawing.collected
    count = max(1, found["samples"])
    return {
        "prompts": prompts,
        "left_out": len(records) - prompts,
        "samples": found["samples"],
        "well_formed": found["well_formed"] / count,
        "exact": found["exact"] / count,
        "mean_tokens": found["tokens"] / count,
        "failures": dict(Counter(drawing.failures).most_common()),
        "resumed": drawing.totals["resumed"],
        "tokens": drawing.totals["tokens"],
        "seconds": round(time.monotonic() - started, 3),
    }


def _records(settings: SampleSettings) -> list[Record]:
    records = [record for path in settings.prompts for record in read_records(path)]
    ids = Counter(record.id for record in records)
    if repeated := [name for name, count in ids.items() if count > 1]:
        raise InvalidRequestError(f"the prompt {repeated[0]!r} is in more than one file")
    seen = {digest(record.messages, "") for path in settings.unseen for record in read_records(path)}
    found, records = len(records), [one for one in records if digest(one.messages, "") not in seen]
    if found > len(records):
        print(f"{found - len(records)} of {found} prompts were trained on, and are left out", file=sys.stderr)
    if not (wanted := [*settings.part(records)]):
        behind = f" behind the first {settings.skip}" if settings.skip else ""
        raise InvalidRequestError(f"no new prompts in {', '.join(map(str, settings.prompts))}{behind}")
    return wanted


async def _drawing(settings: SampleSettings, stack: AsyncExitStack) -> Drawing:
    """Open the backends and the journal; the stack closes them."""
    opened = await stack.enter_async_context(Client(settings.backend))
    limits = opened.limits.model_copy(update={"client_threads": 4 * settings.together, "timeout": None})
    client = baseline = Client(Recording(opened.backend), limits=limits)
    if settings.baseline:
        baseline = await stack.enter_async_context(Client(settings.baseline, limits=limits))
    fields = {
        *("backend", "baseline", "max_tokens", "temperature", "plain_temperature"),
        *("repetition_penalty", "seed", "without_syncs", "template_kwargs"),
    }
    identity = {
        **settings.model_dump(mode="json", include=fields),
        "model": (await client.connect()).name,
        "weights": [backend_digest(settings.backend), backend_digest(settings.baseline)],
    }
    journal = Journal(journal_beside(settings.out), identity, held=False)
    return Drawing(settings, client, baseline, stack.enter_context(journal))


def answer_seed(seed: int, prompt: str, number: int) -> int:
    """The seed of an answer: a hash of the run's seed, the prompt's id and the answer's number, 63 bits."""
    hashed = hashlib.sha256(f"{seed}/{number}/{prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "big") >> 1


class Exchange(NamedTuple):
    """A request, and the ids that came back as far as somebody took them."""

    request: DecodeRequest
    output: list[int]


_RECORDS: ContextVar[tuple[list[Exchange], tuple[int, ...]]] = ContextVar("exchanges and banned ids")


@contextmanager
def recorded(banned: tuple[int, ...] = ()) -> Generator[list[Exchange]]:
    """The requests that this task, and those that it starts, send to a `Recording`, in the order of sending.

    They may not choose the `banned` ids, beside those that each of them bans.
    """
    exchanges: list[Exchange] = []
    token = _RECORDS.set((exchanges, banned))
    try:
        yield exchanges
    finally:
        _RECORDS.reset(token)


class Recording(WrappingBackend):
    """A backend that records, where `recorded` asks for it, what another one is sent, and what comes back.

    A model can write the same text in other tokens than those it is encoded as, and the objective is about
    the probability of what was sampled. So no grammar chooses tags in its place, either.

        async with Client(Recording(backend)) as client:
            with recorded() as exchanges:
                await client.generate(prompt)
    """

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode, recording every id that is handed out.

        Closing the generator or cancelling its reader closes the inner backend's, which aborts the request.
        """
        exchanges, banned = _RECORDS.get(([], ()))
        request = replace(request, banned_ids=(*request.banned_ids, *banned), grammar=None)
        exchange = Exchange(request, [])
        exchanges.append(exchange)
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                exchange.output.extend(piece.ids)
                yield piece


def trie_of(exchanges: Iterable[Exchange]) -> Trie:
    """The contexts of an answer with what came back as targets, main first, then thread by thread.

    Whether main was asked once or anew behind every promise makes no difference.
    """
    trie = Trie()
    for exchange in sorted(exchanges, key=lambda exchange: exchange.request.thread):
        if exchange.output:
            trie.extend(trie.extend(-1, exchange.request.ids), exchange.output, target=True)
    trie.targets = sorted(set(trie.targets))  # what was sampled again after a failure is there once
    return trie


class Drawing:
    """One run over some prompts: a client with a `Recording` draws the samples, `baseline` its own answers.

    The journal keeps finished answers, which are not drawn again; those that ended in an error are. It is
    where answers are until they are asked for: in memory they would need many times the space.
    """

    def __init__(self, settings: SampleSettings, client: Client, baseline: Client, journal: Journal) -> None:
        self._settings, self._client, self._baseline, self._journal = settings, client, baseline, journal
        self._found: dict[tuple[str, int | None], int | Sample | Plain] = {
            (row["prompt"], row["number"]): place for place, row in journal.stored()
        }
        self._plain = (None, *[_OWN] * (settings.own_plain and client is not baseline))
        self._budget = FailureBudget(proven=True)
        self.totals: Counter[str] = Counter()
        """answers (drawn by this run), resumed (found in the journal), tokens (of this run)."""
        self.failures: list[str] = []
        """The errors that ended answers."""
        self.collected: Counter[str] = Counter()
        """Of what `prompts` has yielded: samples, how many are well_formed and exact, their tokens."""

    async def run(self, records: Sequence[Record], advance: Advance) -> None:
        """Draw for every record.

        Cancelling it cancels the answers under way.

        Raises:
            PastaError: The backend cannot be used, or failed many answers in a row.
        """
        info, numbers = await self._client.connect(), range(self._settings.n)
        # Baselines first: few at a time beside the samples, they would cost another model as much as these.
        wanted = [(one, k) for part in (self._plain, numbers) for one in records for k in part]
        due = [(one, number) for one, number in wanted if (_key(one), number) not in self._found]
        self.totals["resumed"] = len(wanted) - len(due)
        advance(self.totals["resumed"])

        async def draw(one: tuple[Record, int | None]) -> None:
            await self._draw(*one, info)
            self.totals["answers"] += 1
            advance()

        await for_each(due, draw, self._settings.together)

    def prompts(self, records: Sequence[Record]) -> Iterator[SampledPrompt]:
        """What was drawn, one prompt at a time. One of which a plain answer failed is left out."""
        own = None if self._client is self._baseline else _OWN
        for record in records:
            if not all((_key(record), number) in self._found for number in self._plain):
                continue
            samples = [self._answer(record, number) for number in range(self._settings.n)]
            plain = {"baseline": self._answer(record, None), "plain": self._answer(record, own)}
            asked = {"id": record.id, "messages": record.messages}
            prompt = SampledPrompt.model_validate({**asked, "samples": samples, **plain})
            for one in prompt.samples:
                kinds = {"well_formed": one.well_formed, "exact": one.exact, "tokens": one.tokens}
                self.collected.update(samples=1, **kinds)
            yield prompt

    def _answer(self, record: Record, number: int | None) -> Any:
        found = self._found.get((_key(record), number))
        return self._journal.read(found)["answer"] if isinstance(found, int) else found

    async def _draw(self, record: Record, number: int | None, info: Model) -> None:
        """Draw a sample, or the baseline's answer if it has no number, or the model's own plain one."""
        settings, plain, error = self._settings, number in (None, _OWN), ""
        temperature = settings.plain_temperature if plain else settings.temperature
        seed = None
        if temperature and info.honours_seeds:
            seed = answer_seed(settings.seed, record.id, _BASELINE if number is None else number)
        syncless = number in range(settings.without_syncs)
        with recorded((info.tags.sync,) if info.tags and syncless else ()) as exchanges:
            try:
                generation = await (self._baseline if number is None else self._client).generate(
                    record.messages,
                    temperature=temperature,
                    repetition_penalty=settings.repetition_penalty,
                    max_tokens=settings.max_tokens,
                    seed=seed,
                    baseline=plain,
                    chat_template_kwargs=settings.template_kwargs,
                    parallel="always",
                    whole_chunks=True,  # nothing is streamed
                )
                self._budget.succeeded()
            except PastaError as failure:
                self._budget.failed(failure)
                error, generation = f"{type(failure).__name__}: {failure}", failure.partial
                self.failures.append(error)
        if number is not None and not plain:
            answer = _sample(number, seed, generation, exchanges, error, info.tags is not None)
        elif generation and not error:
            tokens, reason = generation.usage.completion_tokens, generation.finish_reason
            answer = Plain(text=generation.text, tokens=tokens, finish_reason=reason)
        else:
            return
        self.totals["tokens"] += answer.tokens
        row = {"prompt": _key(record), "number": number, "answer": answer.model_dump(mode="json")}
        self._found[_key(record), number] = answer if error else self._journal.append(row)


def _key(record: Record) -> str:
    return digest(record.messages, record.id)


def _sample(
    number: int,
    seed: int | None,
    generation: Generation | None,
    exchanges: Sequence[Exchange],
    error: str,
    tagged: bool,
) -> Sample:
    """An answer, or the part of one that an error left, as it is stored."""
    if generation is None:
        return Sample(number=number, seed=seed, finish_reason="error", error=error)
    # Of a cut answer with threads, some of what was decoded stands behind the cut.
    dropped = generation.finish_reason == "length" and len(generation.threads) > 1
    trie = trie_of(exchanges)
    tokens = generation.usage.completion_tokens
    return Sample(
        number=number,
        seed=seed,
        text=generation.text,
        written=generation.document.format(),
        finish_reason=generation.finish_reason,
        error=error,
        well_formed=generation.well_formed,
        tokens=tokens,
        critical_path=generation.critical_path,
        threads=generation.threads,
        ids=tuple(trie.ids),
        parents=tuple(trie.parents),
        targets=tuple(trie.targets),
        exact=tagged and not error and not dropped and len(trie.targets) == tokens,
    )


main: Command = command(SampleSettings, sample, "pasta_async.training.sample", __doc__, resumes=True)

if __name__ == "__main__":
    main()
