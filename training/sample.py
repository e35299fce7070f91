"""Draw answers for stage 2: `python -m pasta_async.training.sample`.

Draws n answers to each prompt, and the baseline's answer, into a file of
`pasta_async.training.preference.samples.SampledPrompt`. Beside it is a journal: the same command goes on
where an interrupted one was.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, Field, Json
from tqdm import tqdm

from pasta_async import Client, Sampling
from pasta_async.backends import backend_names
from pasta_async.cli.command import ending
from pasta_async.errors import InvalidRequestError
from pasta_async.jobs import Journal
from pasta_async.training.corpus import read_records
from pasta_async.training.corpus.store import write_lines
from pasta_async.training.preference.drawing import Draw
from pasta_async.training.preference.recording import Recording
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.corpus import Record
    from pasta_async.training.preference.samples import SampledPrompt

__all__ = ["SampleSettings", "Summary", "main", "sample"]


class SampleSettings(BaseModel):
    """How to draw. Every field is a flag of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    prompts: tuple[Path, ...] = Field(
        min_length=1, description="files of records; their prompts are answered"
    )
    out: Path = Field(description="file of samples, JSON lines; its journal stands beside it")
    n: int = Field(default=10, ge=1, description="answers to each prompt")
    skip: int = Field(default=0, ge=0, description="leave out the first so many prompts")
    limit: int = Field(default=0, ge=0, description="only so many prompts (0: all)")
    temperature: float = Field(default=1.0, ge=0, description="of sampling")
    max_tokens: int = Field(default=2048, ge=1, description="of an answer, tags counted")
    seed: int = Field(default=0, description="every answer has its own, derived from this one")
    together: int = Field(default=64, ge=1, description="answers at the same time")
    threads: int = Field(default=256, ge=1, description="threads of all these that decode at the same time")
    baseline: str = Field(default="", description="backend of the baseline's answers (default: the same)")
    template_kwargs: Json[dict[str, Any]] = Field(
        default={}, description='further values for the chat template, as JSON: {"enable_thinking": false}'
    )


class Summary(BaseModel):
    """The figures of a run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    prompts: int
    samples: int
    well_formed: float
    """Share of the samples."""
    exact: float
    """Share of the samples that can be trained on."""
    mean_tokens: float
    """Of a sample."""
    left_out: int
    """Prompts whose baseline failed."""
    failures: dict[str, int]
    """What ended answers, and how many; the same command draws these again."""
    resumed: int
    """Answers that were in the journal already."""
    tokens: int
    """Of this run."""
    seconds: float = Field(gt=0)

    def __str__(self) -> str:
        lines = [
            f"{self.samples} samples of {self.prompts} prompts: {self.well_formed:.1%} well-formed, "
            f"{self.exact:.1%} exact, {self.mean_tokens:.0f} tokens each; {self.left_out} prompts left out",
            f"{self.tokens:,} tokens in {self.seconds:.0f} s, {self.tokens / self.seconds:,.0f}/s; "
            f"{self.resumed} answers from the journal",
            *(f"failed, {count} times: {reason}" for reason, count in self.failures.items()),
        ]
        return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason, Ctrl-C with 130."""
    settings = read_command_line(SampleSettings, "pasta_async.training.sample", __doc__, argv)
    with ending(resumes=True):
        print(asyncio.run(sample(settings)))


async def sample(settings: SampleSettings) -> Summary:
    """Draw, and write the file of samples. Cancelling it loses only the answers under way.

    Raises:
        PastaError: The prompts or a backend cannot be used; answers that were drawn are kept.
    """
    records = _records(settings)
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        draw = await _draw(settings, stack)
        total = len(records) * (settings.n + 1)
        bar = stack.enter_context(tqdm(total=total, unit=" answers", disable=None))
        draw.on_progress = lambda: _show(bar, draw.totals)
        prompts = await draw.run(records, settings.together)
    write_lines(settings.out, prompts)
    return _summary(draw, prompts, len(records), time.monotonic() - started)


def _records(settings: SampleSettings) -> list[Record]:
    records = [record for path in settings.prompts for record in read_records(path)]
    ids = Counter(record.id for record in records)
    if repeated := [name for name, count in ids.items() if count > 1]:
        raise InvalidRequestError(f"the prompt {repeated[0]!r} is in more than one file")
    if not records:
        raise InvalidRequestError(f"no prompts in {', '.join(map(str, settings.prompts))}")
    return records[settings.skip :][: settings.limit or None]


async def _draw(settings: SampleSettings, stack: AsyncExitStack) -> Draw:
    opened = await stack.enter_async_context(Client(backend_names(settings.backend)))
    recording = Recording(opened.backend)
    limits = opened.limits.model_copy(update={"client_threads": settings.threads})
    client = Client(recording, limits=limits)
    baseline = client
    if settings.baseline:
        baseline = await stack.enter_async_context(Client(backend_names(settings.baseline)))
    sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
    identity = {
        **settings.model_dump(
            mode="json",
            include={"backend", "baseline", "temperature", "max_tokens", "seed", "template_kwargs"},
        ),
        "model": (await client.connect()).name,
        "weights": [_weights(settings.backend), _weights(settings.baseline)],
    }
    path = settings.out.with_name(f"{settings.out.stem}.journal{settings.out.suffix}")
    return Draw(
        client,
        recording,
        baseline,
        stack.enter_context(Journal(path, identity)),
        settings.n,
        sampling,
        settings.seed,
        settings.template_kwargs,
    )


def _weights(backend: str) -> str:
    """What tells the weights of a folder from those that stood there before; nothing for a server."""
    scheme, _, folder = backend.partition(":")
    hashed = hashlib.sha256()
    for path in sorted(Path(folder).glob("*.safetensors")) if scheme == "local" and folder else ():
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - 2**20))
            hashed.update(f"{path.name}/{size}/".encode() + file.read())
    return hashed.hexdigest()[:16]


def _show(bar: tqdm[NoReturn], totals: Counter[str]) -> None:
    elapsed = max(bar.format_dict["elapsed"], 1e-6)
    bar.set_postfix_str(f"{totals['tokens']:,} tokens, {totals['tokens'] / elapsed:,.0f}/s", refresh=False)
    bar.update(totals["resumed"] + totals["answers"] - bar.n)


def _summary(draw: Draw, prompts: Sequence[SampledPrompt], asked: int, seconds: float) -> Summary:
    samples = [one for prompt in prompts for one in prompt.samples]
    return Summary(
        prompts=len(prompts),
        samples=len(samples),
        well_formed=fmean(one.well_formed for one in samples) if samples else 0.0,
        exact=fmean(one.exact for one in samples) if samples else 0.0,
        mean_tokens=fmean(one.tokens for one in samples) if samples else 0.0,
        left_out=asked - len(prompts),
        failures=dict(Counter(draw.failures).most_common()),
        resumed=draw.totals["resumed"],
        tokens=draw.totals["tokens"],
        seconds=round(seconds, 3),
    )


if __name__ == "__main__":
    main()
