"""`LocalBackend`: the embedded engine behind the protocol that the interpreter asks for."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, get_args

from anyio import to_thread

from pasta_async.backends.local.pull import default_model, find_model
from pasta_async.backends.options import EngineOptions, checked_options
from pasta_async.engine_load import EngineLoad
from pasta_async.errors import BackendError, InvalidRequestError, missing_extra
from pasta_async.grammar import Grammar, GrammarKind, grammar_vocabulary
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async.tag_tokens import TagState

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher, LLTokenizer

    from pasta_async.backends.local.engine import Engine, Stream

_LOG = logging.getLogger(__name__)


class LocalBackend:
    """Decodes in this process, on a CPU or on CUDA, with Llama, Qwen2 and Qwen3 checkpoints.

    All live threads of all answers share one forward pass for each step. Keys and values are shared through a
    radix tree, also between threads that are still running: a fork copies nothing.

    A request goes on decoding while its reader is slow, as on a server. When KV slots run out, requests wait;
    those that could never fit are refused at once. Event loops may share a backend, one after another or at
    once.

    Args:
        path: Checkpoint folder in Hugging Face's layout (safetensors, tokenizer.json, config.json), a GGUF
            file, or the folder of an adapter in peft's layout whose base is there; or the name of a model
            that ships, pasta-smol or qwen-1.5b for instance. None: pasta-qwen if its base is there, else
            pasta-smol.
        options: See `EngineOptions`.

    Raises:
        InvalidRequestError: An option is of the wrong type or out of range, or no model is named and the base
            of neither is there.
    """

    def __init__(self, path: str | Path | None = None, **options: Unpack[EngineOptions]) -> None:
        self._options = checked_options(options)
        self._path = default_model() if path is None else find_model(path)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pasta_async-local")
        self._loaded: _LoadedModel | None = None
        self._closed = False

    @property
    def engine(self) -> Engine | None:
        """Model, cache and scheduler, to look into; None before `connect` and after `aclose`."""
        return self._loaded and self._loaded.engine

    async def connect(self) -> Model:
        """Load the model, once. Cancelling it leaves the loading to the engine's thread.

        Raises:
            UnsupportedModelError: The model is missing, cannot be used or does not fit in memory; the message
                says why.
            BackendError: torch and the rest of the `local` extra are not installed, or the backend is closed.
        """
        return (await self._connected()).model

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode, a piece for each step. See `pasta_async.protocol.Backend.decode`.

        Closing it, or cancelling a task that iterates it, takes the request out before the next step; its KV
        slots then serve as cache until they are evicted.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, none at all, more tokens than the context holds.
            BackendError: The engine failed, or the backend was closed.
        """
        loaded = await self._connected()
        grammar = request.grammar and await to_thread.run_sync(loaded.begin_grammar, request.grammar)
        stream = loaded.stream(request, grammar)
        loaded.engine_loop.open(stream)
        try:
            finish_reason = None
            while finish_reason is None:
                piece = await stream.read()
                finish_reason = piece.finish_reason
                yield piece
        finally:
            await loaded.engine_loop.close(stream)

    async def load(self) -> EngineLoad | None:
        """The scheduler's counts, and the times of steps. Never waits, so there is nothing to cancel."""
        if (engine := self.engine) is None:
            return None
        return replace(engine.scheduler.load(), step_doubles_at=engine.step_times.doubles_at)

    async def aclose(self) -> None:
        """End open requests with an error and free the model. A cancellation is raised after that."""
        self._closed = True
        loaded = self._loaded
        self._loaded = None
        try:
            if loaded is not None:
                await loaded.engine_loop.aclose(BackendError(f"{self._path.name}: the backend was closed"))
        finally:
            self._executor.shutdown(wait=False)  # a call that waits for the loading finds it closed

    async def _connected(self) -> _LoadedModel:
        if self._loaded is None and not self._closed:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._load)
        if (loaded := self._loaded) is None:
            raise BackendError(f"{self._path.name}: the backend is closed")
        return loaded

    def _load(self) -> None:
        """Load the model, in the engine's thread, so that two callers wait for one loading."""
        if self._loaded is None and not self._closed:
            with _uncollected():
                loaded = _LoadedModel(self._path, self._options, self._executor, lambda: self._closed)
            self._loaded = loaded
            if self._closed:  # meanwhile, and then `aclose` may have found no model
                self._loaded = None


class _LoadedModel:
    """An engine with its tokenizer. Making one imports what the engine needs."""

    def __init__(
        self, path: Path, options: EngineOptions, executor: ThreadPoolExecutor, closed: Callable[[], bool]
    ) -> None:
        try:
            import numpy as np

            from pasta_async.backends.local.adapter import open_checkpoint
            from pasta_async.backends.local.engine import Engine, EngineLoop

            checkpoint = open_checkpoint(path)
            self._defaults = checkpoint.generation_defaults()
            # The tokenizer is made beside the engine, whose kernels are loaded without Python's lock. But no
            # tensor is converted for a model whose tokenizer cannot be used.
            with ThreadPoolExecutor(1) as thread:
                making = thread.submit(checkpoint.tokenizer)

                def tensor(name: str) -> torch.Tensor:
                    making.result()
                    if closed():  # a program that ends waits for this thread
                        raise BackendError(f"{path.name}: the backend was closed while it loaded")
                    return checkpoint.tensor(name)

                self.engine = Engine(replace(checkpoint, tensor=tensor), options)
                tokenizer = making.result()
        except ModuleNotFoundError as error:
            raise BackendError(str(missing_extra("local:", "local", error))) from error
        self.engine_loop = EngineLoop(self.engine, executor)
        self._vocabulary: LLTokenizer | None = None
        self._making_vocabulary = threading.Lock()
        self._never_penalised = np.array([*(tokenizer.tags or ()), *tokenizer.end_ids], np.int64)
        self.model = Model(
            name=path.name,
            tokenizer=tokenizer,
            context_length=self.engine.context_length,
            vocab_size=self.engine.config.vocab_size,
            honours_seeds=True,
            # A grammar ends an output by end-of-text.
            grammars=frozenset(get_args(GrammarKind) if tokenizer.end_ids else ()),
        )
        _LOG.info("%s: %d million weights, %s", path.name, self.engine.weights // 10**6, self.engine.dtype)

    def begin_grammar(self, grammar: Grammar) -> LLMatcher:
        """Follow an output by a grammar. The first time that takes seconds: call it in a worker thread."""
        with self._making_vocabulary:
            self._vocabulary = self._vocabulary or grammar_vocabulary(self.model.tokenizer)
        return grammar.matcher(self._vocabulary)

    def stream(self, request: DecodeRequest, grammar: LLMatcher | None) -> Stream:
        """A request as the engine takes it; InvalidRequestError if it cannot."""
        from pasta_async.backends.local.engine import Stream
        from pasta_async.backends.local.sampler import TokenSampler
        from pasta_async.backends.local.scheduler import Job

        _check_ids(request, self.model)
        sampler = TokenSampler(
            request.sampling,
            request.seed,
            request.extra.get("logits_processor"),
            (*request.banned_ids, *self._defaults.suppress_tokens),
            penalty=self._defaults.repetition_penalty,
            exempt=self._never_penalised,
            tags=request.tag_grammar and TagState(request.tag_grammar, request.ids),
            grammar=grammar,
        )
        stops = (*request.stop_ids, *self.model.end_ids)
        job = Job(request.answer, request.ids, request.max_tokens, sampler, stops)
        return Stream(job)


@contextmanager
def _uncollected() -> Generator[None]:
    """Switch the garbage collector off: all that is loaded stays, and collecting took a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_ids(request: DecodeRequest, model: Model) -> None:
    """Refuse a request that the engine cannot decode (`InvalidRequestError`)."""
    ids = request.ids
    if set(map(type, ids)) - {int} or not 0 <= min(ids, default=0) <= max(ids, default=0) < model.vocab_size:
        raise InvalidRequestError(
            f"the context has something else than ids of {model.name} (0 to {model.vocab_size - 1})"
        )
    if not ids or request.max_tokens < 1 or len(ids) + request.max_tokens > model.context_length:
        raise InvalidRequestError(
            f"{len(ids)} context tokens and max_tokens {request.max_tokens} do not fit the context length of "
            f"{model.name} ({model.context_length}): shorten the prompt or lower max_tokens"
        )
