"""The embedded engine and llama.cpp, each in a process of its own, to be measured side by side.

All get token ids and choose the likeliest token, so they do the same work, whatever the weights say.
"""

# llama_cpp and gguf have no types, transformers and torch leave some open.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import asyncio
import importlib
import math
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pasta_async.errors import PastaError
from pasta_async.evals.llama_cpp import LlamaCpp, Prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import torch

    from pasta_async.lang import Document
    from pasta_async.protocol import DecodeRequest


__all__ = ["Contestant", "Peer", "RemoteContestant", "open_contestant"]

_SLOTS = 8192  # of the embedded engine


class Peer(NamedTuple):
    """What is measured, and in which number format."""

    engine: str
    """`local` or `llama.cpp`."""
    dtype: str
    path: str
    """The model: a folder or a GGUF file."""

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return f"{self.engine} {self.dtype}"


class Contestant(Protocol):
    """An engine with a loaded model. Times are in seconds."""

    def first_token(self, prompt: Sequence[int]) -> float:
        """The time to compute a prompt that was not seen before and to choose its first token.

        The engine keeps the prompt's keys and values for `threads`.
        """
        ...

    def threads(self, starts: Sequence[int], steps: int) -> float:
        """The time for threads behind the last prompt to decode `steps` tokens each; each has its first."""
        ...

    def write(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The time to compute a prompt and to write a given answer, token by token."""
        ...

    def predict(self, windows: Sequence[Sequence[int]]) -> Prediction:
        """How likely each token of some texts is after those before it."""
        ...

    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...


class _Local:
    """The embedded engine through its backend, as a client uses it."""

    def __init__(self, path: str, dtype: str, threads: int) -> None:
        from pasta_async.backends.local import LocalBackend

        self._runner = asyncio.Runner()
        self._backend = LocalBackend(path, dtype=dtype, device="cpu", slots=_SLOTS, threads=threads)
        self._runner.run(self._backend.connect())
        self._prompt: tuple[int, ...] = ()

    def first_token(self, prompt: Sequence[int]) -> float:
        self._prompt = tuple(prompt)
        return self._timed([self._prompt], 1)

    def threads(self, starts: Sequence[int], steps: int) -> float:
        return self._timed([(*self._prompt, start) for start in starts], steps)

    def write(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        self._prompt = tuple(prompt)
        return self._timed([self._prompt], len(answer), answer)

    def predict(self, windows: Sequence[Sequence[int]]) -> Prediction:
        from pasta_async import Sampling
        from pasta_async.protocol import DecodeRequest

        bits: dict[tuple[int, int], float] = {}
        likeliest: dict[tuple[int, int], int] = {}

        def reading(number: int, window: Sequence[int]) -> DecodeRequest:
            def force_next(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
                place = (number, len(generated))
                following = window[len(generated) + 1]
                bits[place] = -float(logits.log_softmax(-1)[following]) / math.log(2)
                likeliest[place] = int(logits.argmax())
                logits[following] = 1e6
                return logits

            return DecodeRequest(
                f"text {number}",
                0,
                (window[0],),
                len(window) - 1,
                Sampling(temperature=0),
                extra={"logits_processor": force_next},
            )

        self._decode([reading(number, window) for number, window in enumerate(windows)])
        return Prediction(fmean(bits.values()), [likeliest[place] for place in sorted(likeliest)])

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text, line by line, for all of it may be longer than the model's context."""

        async def ids() -> list[int]:
            lines = [await self._backend.encode(line) for line in text.splitlines(keepends=True)]
            return [token for line in lines for token in line]

        return self._runner.run(ids())

    def vocabulary(self) -> int:
        assert self._backend.engine is not None
        return self._backend.engine.config.vocab_size

    def encode(self, prompt: str, document: Document) -> tuple[list[int], list[int]]:
        """Ids of a prompt, as a chat message, and of a document's visible text."""

        async def ids() -> tuple[list[int], list[int]]:
            prompt_ids = await self._backend.encode_chat([{"role": "user", "content": prompt}], {})
            return prompt_ids, await self._backend.encode(document.text)

        return self._runner.run(ids())

    def answer(self, prompt: str, document: Document) -> float:
        """The time to write a document in parallel, from a cold cache for it."""
        from pasta_async import Client
        from pasta_async.evals.forcing import FORCED_LIMITS, FORCED_SAMPLING, ForcedBackend

        async def generate() -> float:
            async with Client(
                ForcedBackend(self._backend, {prompt: document}), limits=FORCED_LIMITS
            ) as client:
                await client.connect()
                began = time.perf_counter()
                await client.generate(prompt, sampling=FORCED_SAMPLING)
                return time.perf_counter() - began

        return self._runner.run(generate())

    def _timed(
        self, prompts: Sequence[tuple[int, ...]], tokens: int, forced: Sequence[int] | None = None
    ) -> float:
        from pasta_async import Sampling
        from pasta_async.evals.forcing import force
        from pasta_async.protocol import DecodeRequest

        requests = [
            DecodeRequest("answer", thread, ids, tokens, Sampling(temperature=0))
            for thread, ids in enumerate(prompts)
        ]
        if forced is not None:
            requests = [force(self._backend, request, forced) for request in requests]
        return self._decode(requests)

    def _decode(self, requests: Sequence[DecodeRequest]) -> float:
        """The time to decode requests, all at once."""

        async def decode(request: DecodeRequest) -> None:
            async for _ in self._backend.decode(request):
                pass

        async def together() -> float:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(decode(request))
            return time.perf_counter() - began

        return self._runner.run(together())


def _load(peer: Peer, threads: int) -> Contestant:
    if peer.engine == "local":
        return _Local(peer.path, peer.dtype, threads)
    return LlamaCpp(peer.path, threads)


class RemoteContestant:
    """A contestant in a process of its own: while another one is measured it waits.

    Args:
        pool: Of the one process.
        peer: What it loads.
        threads: CPU threads that it has.
    """

    def __init__(self, pool: ProcessPoolExecutor, peer: Peer, threads: int) -> None:
        self.name: str = peer.name
        self._pool = pool
        self.load_seconds: float = self._run(_open, peer, threads)
        """From the first look at the files until it can be asked."""

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of `Contestant` there.

        Raises:
            PastaError: The engine failed.
        """
        return self._run(_call, method, arguments)

    def peak_memory(self) -> float:
        """The most memory that its process had, in bytes."""
        return self._run(_peak_memory)

    def _run(self, work: Callable[..., Any], *arguments: object) -> Any:
        try:
            return self._pool.submit(work, *arguments).result()
        except BrokenProcessPool:
            raise PastaError("the engine's process ended; what it printed says why") from None
        except (PastaError, ImportError, OSError, ValueError) as error:
            raise PastaError(f"{self.name}: {type(error).__name__}: {error}") from error


@contextmanager
def open_contestant(peer: Peer, threads: int) -> Generator[RemoteContestant]:
    """Load a peer with so many CPU threads in a process of its own, which ends with the block.

    Raises:
        PastaError: It cannot be loaded: its package is missing, or it refuses the model.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield RemoteContestant(pool, peer, threads)


_contestant: Any = None  # of the process


def _open(peer: Peer, threads: int) -> float:
    global _contestant
    module = {"local": "pasta_async.backends.local.engine"}.get(peer.engine, "llama_cpp")
    importlib.import_module(module)  # does not count as loading the model
    began = time.perf_counter()
    _contestant = _load(peer, threads)
    return time.perf_counter() - began


def _call(method: str, arguments: tuple[object, ...]) -> Any:
    return getattr(_contestant, method)(*arguments)


def _peak_memory() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the process was before it became this program
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return 1024.0 * int(lines["VmHWM"].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
