"""The embedded engine beside llama.cpp, with a model of the same shape, in one run.

    python -m pasta_async.evals.engine FOLDER --llama-cpp model-Q8_0.gguf

llama.cpp is given files that it can read, and asked through its own low-level API. All engines get token ids
and choose the likeliest token, and none stops at an end-of-text token, so they do the same work. One works at
a time; each round measures all of them, in an order of its own. Whole answers beside llama.cpp's are measured
by `methods --llama-cpp`.

It needs the extra `peers`, and a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from pasta_async import Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.machine import available_cores
from pasta_async.backends.options import DType
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.errors import PastaError
from pasta_async.evals.report import environment, grouped, markdown_table
from pasta_async.evals.statistics import estimate
from pasta_async.progress import progress
from pasta_async.protocol import DecodeRequest

Row = dict[str, Any]

_KEYS = ("engine", "round")
_SLOTS = 8192  # tokens of context of the embedded engine
_CONTEXT = 4096  # tokens of context of llama.cpp, of all sequences
_SEQUENCES = 17  # the prefix and 16 threads


def _of_distinct_names(files: tuple[Path, ...]) -> tuple[Path, ...]:
    if len({path.stem for path in files}) < len(files):
        raise ValueError("two files have one name, and rows are named by it: rename one, or link to it")
    return files


LlamaCppFiles = Annotated[tuple[Path, ...], AfterValidator(_of_distinct_names)]
"""GGUF files, each of which is measured under its name."""


class EngineSettings(CommandSettings):
    """Settings of a measurement."""

    model: str = Field(description="what stands behind `local:`: a folder, a GGUF file, a name")
    dtypes: tuple[DType, ...] = Field(default=("int8",), description="number formats of the embedded engine")
    llama_cpp: LlamaCppFiles = Field(default=(), description="GGUF files for llama.cpp")
    threads: tuple[Count, ...] = Field(default=(1, 2, 4, 8, 16), description="threads that decode at once")
    prefix: Count = Field(default=256, description="tokens that they share")
    steps: Count = Field(default=32, description="tokens that each decodes")
    rounds: Count = Field(default=10, description="number of times that everything is measured")
    cpus: int | None = Field(default=None, ge=1, description="CPU threads of an engine; default: all cores")

    @model_validator(mode="after")
    def _fits_llama_cpp(self) -> Self:
        if not self.llama_cpp:
            return self
        threads = max(self.threads)
        if threads >= _SEQUENCES:
            raise ValueError(f"llama.cpp is measured with at most {_SEQUENCES - 1} threads")
        if self.prefix + threads * self.steps > _CONTEXT:
            raise ValueError(
                f"llama.cpp is measured with at most {_CONTEXT} tokens, of the prefix and all threads"
            )
        return self


class Local:
    """The embedded engine through its backend, as a client uses it. Times are in seconds."""

    def __init__(self, path: str, dtype: DType, cpus: int) -> None:
        self.name: str = f"local {dtype}"
        self._runner = asyncio.Runner()
        self._backend = LocalBackend(path, dtype=dtype, device="cpu", slots=_SLOTS, threads=cpus)
        try:
            self._model = self._runner.run(self._backend.connect())
        except BaseException:
            self._runner.close()
            raise
        self.vocabulary: int = self._model.vocab_size
        self._prompt: tuple[int, ...] = ()

    def first_token(self, prompt: Sequence[int]) -> float:
        """Time to compute a prompt that was not seen before, and to choose its first token."""
        self._prompt = tuple(prompt)
        return self._runner.run(self._decode([self._prompt], 1))

    def threads(self, starts: Sequence[int], steps: int) -> float:
        """Time for threads behind the last prompt to decode `steps` tokens each; each has its first."""
        return self._runner.run(self._decode([(*self._prompt, start) for start in starts], steps))

    def close(self) -> None:
        """Let the model go."""
        self._runner.run(self._backend.aclose())
        self._runner.close()

    async def _decode(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> float:
        """Time to decode `tokens` tokens behind each prompt, all prompts at once."""

        async def decode(thread: int, ids: tuple[int, ...]) -> int:
            # An end-of-text token would end the request early, and its time would be that of fewer tokens.
            banned = self._model.end_ids
            request = DecodeRequest("answer", thread, ids, tokens, Sampling(), banned_ids=banned)
            return sum([len(piece.ids) async for piece in self._backend.decode(request)])

        began = time.perf_counter()
        counts = await asyncio.gather(*(decode(thread, ids) for thread, ids in enumerate(prompts)))
        seconds = time.perf_counter() - began
        if any(count != tokens for count in counts):
            raise PastaError(f"a thread decoded fewer than {tokens} tokens")
        return seconds


class LlamaCpp:
    """llama.cpp through its low-level API: batches of several sequences that share a prefix.

    It gets a GGUF file, and has the methods of `Local`. Nothing looks for an end-of-text token.

    Raises:
        PastaError: llama.cpp is not installed, or cannot load the file.
    """

    def __init__(self, path: Path, cpus: int) -> None:
        self.name: str = f"llama.cpp {path.stem}"
        self._api: Any = _quiet_llama_cpp()
        api = self._api
        self._model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        parameters = api.llama_context_default_params()
        parameters.n_ctx = _CONTEXT
        parameters.n_batch = _CONTEXT  # a prompt is one batch
        parameters.n_seq_max = _SEQUENCES
        parameters.kv_unified = True
        parameters.n_threads = cpus
        parameters.n_threads_batch = cpus
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._model or not self._context:
            raise PastaError(f"llama.cpp cannot load {path}")
        self._memory = api.llama_get_memory(self._context)
        self._greedy = api.llama_sampler_init_greedy()
        self._batch = api.llama_batch_init(_CONTEXT, 0, 1)
        self._prompt = 0
        self.vocabulary: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def first_token(self, prompt: Sequence[int]) -> float:
        """See `Local`."""
        self._api.llama_memory_clear(self._memory, False)
        self._prompt = len(prompt)
        began = time.perf_counter()
        self._decode([(token, position, 0) for position, token in enumerate(prompt)])
        return time.perf_counter() - began

    def threads(self, starts: Sequence[int], steps: int) -> float:
        """See `Local`."""
        api = self._api
        sequences = range(1, len(starts) + 1)  # sequence 0 has the prefix
        tokens = list(starts)
        for sequence in sequences:
            api.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        began = time.perf_counter()
        for step in range(steps):
            position = self._prompt + step
            tokens = self._decode([(token, position, sequences[i]) for i, token in enumerate(tokens)])
        seconds = time.perf_counter() - began
        for sequence in sequences:
            api.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return seconds

    def write(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """Compute a prompt and write a given answer, token by token; the time to its first token."""
        seconds = self.first_token(prompt)
        for position, token in enumerate(answer[:-1], len(prompt)):  # nothing stands behind the last one
            self._decode([(token, position, 0)])
        return seconds

    def close(self) -> None:
        """Let the model go."""
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _decode(self, entries: Sequence[tuple[int, int, int]]) -> list[int]:
        """Compute tokens (id, position, sequence); the next token behind the last of each sequence."""
        if len(entries) > _CONTEXT:
            raise PastaError(f"llama.cpp is measured with prompts of at most {_CONTEXT} tokens")
        last = {sequence: i for i, (_, _, sequence) in enumerate(entries)}.values()
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i in last
        if status := self._api.llama_decode(self._context, batch):
            raise PastaError(f"llama_decode returned {status}")
        return [self._api.llama_sampler_sample(self._greedy, self._context, i) for i in last]


def _ignore(*_: Any) -> None:
    pass


@cache
def _quiet_llama_cpp() -> Any:
    """The module, told not to print hundreds of lines."""
    try:
        api: Any = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise PastaError("llama-cpp-python is missing: pip install 'pasta_async[peers]'") from error
    api.pasta_async_log = api.llama_log_callback(_ignore)  # C calls it as long as the process lives
    api.llama_log_set(api.pasta_async_log, None)
    api.llama_backend_init()
    return api


def measure(settings: EngineSettings, engines: Sequence[Local | LlamaCpp]) -> Generator[Row]:
    """A row for each engine and round: milliseconds to the first token, and tokens a second."""
    vocabulary = min(engine.vocabulary for engine in engines)
    draw = random.Random(0)
    with progress(settings.rounds * len(engines), "rounds") as advance:
        for number in range(-1, settings.rounds):  # the first one warms up
            prefix = draw.choices(range(vocabulary), k=settings.prefix)
            starts = draw.choices(range(vocabulary), k=max(settings.threads))
            for engine in draw.sample(engines, len(engines)):
                row: Row = {"engine": engine.name, "round": number}
                row["first token ms"] = 1000 * engine.first_token(prefix)
                for count in settings.threads:
                    seconds = engine.threads(starts[:count], settings.steps)
                    row[f"{count} threads, tokens/s"] = count * settings.steps / seconds
                if number >= 0:
                    advance()
                    yield row


def table(rows: Sequence[Row]) -> str:
    """Geometric means over the rounds, with their intervals: a row for each engine."""
    return markdown_table(
        [
            {
                "engine": engine,
                **{name: estimate([row[name] for row in group]) for name in group[0] if name not in _KEYS},
            }
            for engine, group in grouped(rows, lambda row: row["engine"]).items()
        ]
    )


def _run(settings: EngineSettings) -> str:
    cpus = settings.cpus or available_cores()
    makers = [
        *(partial(Local, settings.model, dtype) for dtype in dict.fromkeys(settings.dtypes)),
        *(partial(LlamaCpp, path) for path in settings.llama_cpp),
    ]
    with ExitStack() as stack:
        engines: list[Local | LlamaCpp] = []
        for make in makers:
            engines.append(make(cpus))
            stack.callback(engines[-1].close)
        rows = [*measure(settings, engines)]
    return f"{table(rows)}\n\n{cpus} CPU threads; {environment()}"


main: Command = command(EngineSettings, _run, "engine", __doc__, positional=("model",))

if __name__ == "__main__":
    main()
