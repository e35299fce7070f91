"""The embedded engine, llama.cpp and transformers, each in a process of its own, to be measured side by side.

All get token ids and choose the likeliest token, so they do the same work, whatever the weights say.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from pydantic import Field

from pasta_async import Sampling
from pasta_async.backends import BackendOptions
from pasta_async.cli.command import CommandSettings
from pasta_async.errors import PastaError
from pasta_async.evals.llama_cpp import LlamaCpp, llama_cpp_files
from pasta_async.evals.records import cores, own_memory
from pasta_async.protocol import DecodeRequest

_SLOTS = 8192  # of the embedded engine


class Peer(NamedTuple):
    """What is measured, and in which number format."""

    engine: str
    """`local`, `llama.cpp` or `transformers`."""
    dtype: str
    path: str
    """The model: a folder or a GGUF file."""

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return f"{self.engine} {self.dtype}"


class _Local:
    """The embedded engine through its backend, as a client uses it; methods and times as `LlamaCpp` has."""

    def __init__(self, peer: Peer, threads: int) -> None:
        from pasta_async.backends.local import LocalBackend  # torch would count as memory of the others

        self._runner = asyncio.Runner()
        self._backend = LocalBackend(peer.path, dtype=peer.dtype, device="cpu", slots=_SLOTS, threads=threads)
        self._runner.run(self._backend.connect())
        self._prompt: tuple[int, ...] = ()

    def first_token(self, prompt: Sequence[int]) -> float:
        self._prompt = tuple(prompt)
        return self._runner.run(self._decode([self._prompt], 1))

    def threads(self, starts: Sequence[int], steps: int) -> float:
        return self._runner.run(self._decode([(*self._prompt, start) for start in starts], steps))

    def vocabulary(self) -> int:
        assert self._backend.engine is not None
        return self._backend.engine.config.vocab_size

    async def _decode(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> float:
        """The time to decode so many tokens behind each prompt, all at once."""

        async def decode(thread: int, ids: tuple[int, ...]) -> None:
            async for _ in self._backend.decode(DecodeRequest("answer", thread, ids, tokens, Sampling())):
                pass

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for thread, ids in enumerate(prompts):
                group.create_task(decode(thread, ids))
        return time.perf_counter() - began


class _Transformers:
    """The same of transformers' `generate` in float32: a batch behind a prefix whose KV is kept."""

    def __init__(self, peer: Peer, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        path, options = Path(peer.path), dict[str, Any]()
        if path.suffix == ".gguf":
            path, options = path.parent, {"gguf_file": path.name}
        models: Any = transformers.AutoModelForCausalLM
        self._model: Any = models.from_pretrained(str(path), **options, dtype=torch.float32).eval()
        self._prompt: tuple[int, ...] = ()
        self._cache: Any = None

    def first_token(self, prompt: Sequence[int]) -> float:
        from transformers import DynamicCache

        self._prompt, self._cache = tuple(prompt), DynamicCache()
        return self._generate([self._prompt], 1, self._cache)

    def threads(self, starts: Sequence[int], steps: int) -> float:
        cache = deepcopy(self._cache)
        cache.batch_repeat_interleave(len(starts))
        return self._generate([(*self._prompt, start) for start in starts], steps, cache)

    def vocabulary(self) -> int:
        return self._model.config.vocab_size

    def _generate(self, prompts: Sequence[tuple[int, ...]], tokens: int, cache: Any) -> float:
        import torch

        ids = torch.tensor(prompts)
        length = {"min_new_tokens": tokens, "max_new_tokens": tokens}
        began = time.perf_counter()
        self._model.generate(ids, past_key_values=cache, do_sample=False, pad_token_id=0, **length)
        return time.perf_counter() - began


class RemoteEngine:
    """An engine in a process of its own: while another one is measured it waits."""

    def __init__(self, pool: ProcessPoolExecutor, peer: Peer, threads: int) -> None:
        self.name: str = peer.name
        self._pool = pool
        self.load_seconds: float = self._run(_open, peer, threads)
        """From the first look at the files until it can be asked."""

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the engine there.

        Raises:
            PastaError: The engine failed.
        """
        return self._run(_call, method, arguments)

    def peak_memory(self) -> int:
        """The most memory that its process had, in bytes."""
        return self._run(own_memory, "VmHWM")

    def _run(self, work: Callable[..., Any], *arguments: object) -> Any:
        try:
            return self._pool.submit(work, *arguments).result()
        except BrokenProcessPool:
            raise PastaError("the engine's process ended; what it printed says why") from None
        except (PastaError, ImportError, OSError, ValueError) as error:
            raise PastaError(f"{self.name}: {type(error).__name__}: {error}") from error


@contextmanager
def open_engine_process(peer: Peer, threads: int) -> Generator[RemoteEngine]:
    """Load a peer with so many CPU threads in a process of its own, which ends with the block.

    Raises:
        PastaError: Its package is missing, or it refuses the model.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield RemoteEngine(pool, peer, threads)


class LlamaCppSettings(CommandSettings):
    """Settings of a command that times llama.cpp beside a backend."""

    llama_cpp: Path | None = Field(
        default=None, description="the same weights for llama.cpp: a folder, a GGUF file"
    )
    llama_cpp_type: Literal["Q8_0", "Q4_0"] = Field(default="Q8_0", description="llama.cpp's number format")
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of local: and of llama.cpp; beside llama.cpp all by default, in both",
    )

    def options_of(self, backend: str) -> BackendOptions:
        """Of that backend, named as for `open_backend`: its threads, if it takes any."""
        threads = self.threads or (cores() if self.llama_cpp else None)
        return {"threads": threads} if threads and backend.startswith("local:") else {}


@contextmanager
def open_llama_cpp(settings: LlamaCppSettings) -> Generator[RemoteEngine | None]:
    """llama.cpp with the weights that the settings name; None if they name none.

    Raises:
        PastaError: llama.cpp is not installed, or cannot convert the model.
    """
    if settings.llama_cpp is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        name = settings.llama_cpp_type
        files = llama_cpp_files(settings.llama_cpp, Path(folder), [name])
        peer = Peer("llama.cpp", name, str(files[name]))
        with open_engine_process(peer, settings.threads or cores()) as engine:
            yield engine


_ENGINES: dict[str, tuple[str, Callable[[Peer, int], Any]]] = {
    "local": ("pasta_async.backends.local.engine", _Local),
    "llama.cpp": ("llama_cpp", lambda peer, threads: LlamaCpp(peer.path, threads)),
    "transformers": ("transformers.generation", _Transformers),
}
"""Of each engine what is imported before it is loaded, which does not count, and what loads it."""

_engine: Any = None  # of the process


def _open(peer: Peer, threads: int) -> float:
    global _engine
    module, load = _ENGINES[peer.engine]
    importlib.import_module(module)
    began = time.perf_counter()
    _engine = load(peer, threads)
    return time.perf_counter() - began


def _call(method: str, arguments: tuple[object, ...]) -> Any:
    return getattr(_engine, method)(*arguments)
