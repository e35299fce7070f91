"""`LocalBackend`: the embedded engine behind the protocol that the interpreter asks for."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.backends.local.bases import default_model, find_model
from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError, missing_extra
from pasta_async.load import EngineLoad
from pasta_async.protocol import DecodeRequest, Message, ModelInfo, Piece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pasta_async.backends.local.engine import Engine
    from pasta_async.backends.local.session import Session, Stream

_LOG = logging.getLogger(__name__)
_SMALL = 100_000_000  # weights; below this the products are too small to share between threads
_MOST_THREADS = 1024  # a system that cannot start as many as are asked for ends the process
_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
_ONE_AT_A_TIME = threading.Lock()  # what sets the number of threads of the process
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


class LocalBackend:
    """Decodes in this process, on a CPU or on CUDA, with Llama, Qwen2 and Qwen3 checkpoints.

    All live threads of all answers share one forward pass for each step. Keys and values are shared through a
    radix tree, also between threads that are still running: a fork copies nothing.

    A slow reader pauses its own request and nothing else. When KV slots run out, requests wait; those that
    could never fit are refused at once. One event loop at a time; another may follow.

    Args:
        path: Checkpoint folder in Hugging Face's layout (safetensors, tokenizer.json, config.json), a GGUF
            file, or the folder of an adapter in peft's layout whose base is there; or the name of a model
            that ships, pasta-smol. None: pasta-smol, whose base must be on this machine when it connects.
        device: ``"cpu"``, ``"cuda"``, ...; None for CUDA where there is one.
        dtype: Number format to compute in, whatever the files hold: ``"float32"`` (exact), ``"int8"``
            (CPUs; 8-bit weights, and activations quantised at run time: more than twice as fast, at less
            than 1% more bits a token), ``"bfloat16"`` or ``"float16"``. None or ``"auto"``: float32 for
            models of fewer than 50 million weights, else int8 on a CPU and bfloat16 on CUDA.
            `ModelInfo.dtype` says which it is.
        slots: Tokens whose keys and values are kept; None for what a gibibyte holds, at most 32768.
        context_length: Limit of prompt and output together; None for the model's own, at most `slots`.
        max_running: Requests that decode at the same time; the others wait.
        max_prefill_tokens: Prompt tokens computed in one step; a long prompt takes several, and the others
            go on.
        threads: CPU threads of the engine; None for one if the model is small (more would wait for each
            other), else torch's own number; at most 1024. The rest of the process keeps its setting.

    Raises:
        InvalidRequestError: An option is of the wrong type or out of range.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        slots: int | None = None,
        context_length: int | None = None,
        max_running: int = 256,
        max_prefill_tokens: int = 256,
        threads: int | None = None,
    ) -> None:
        numbers: dict[str, Any] = {"slots": slots, "context_length": context_length, "threads": threads}
        numbers |= {"max_running": max_running, "max_prefill_tokens": max_prefill_tokens}
        _check_options(numbers, device, dtype)
        self._path = None if path is None else find_model(checked_path(path))
        self._options: dict[str, Any] = {**numbers, "device": device, "dtype": dtype}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pasta_async-local")
        self._model: _Model | None = None
        self._session: Session | None = None
        self._closed = False

    @property
    def engine(self) -> Engine | None:
        """Model, cache and scheduler, to look into; None before `connect` and after `aclose`."""
        return self._model and self._model.engine

    async def connect(self) -> ModelInfo:
        """Load the model, once. Cancelling it leaves the loading to the engine's thread.

        Raises:
            UnsupportedModelError: The model is missing, cannot be used or does not fit in memory; the message
                says why.
            BackendError: torch and the rest of the `local` extra are not installed, or the backend is closed.
        """
        return (await self._connected()).info

    async def encode(self, text: str) -> list[int]:
        """Encode text as data; decoding gives it back. Cancelling it leaves nothing behind.

        Raises:
            InvalidRequestError: The text has lone surrogates, which no encoding can write.
            PromptTooLongError: It has far more tokens than the model takes.
        """
        return await (await self._connected()).text.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template, what stands in them as data.

        Cancelling it leaves nothing behind.

        Raises:
            InvalidRequestError: The template refuses them; there is none, and there are several messages; or
                they have lone surrogates.
        """
        return await (await self._connected()).text.encode_chat(messages, template_kwargs)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept, nothing added between them.

        Cancelling it leaves nothing behind.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, or no integers.
        """
        model = await self._connected()
        return model.codec.detokenize(_checked_ids(ids, model.info).tolist())

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode, a piece for each step. See `pasta_async.protocol.Backend.decode`.

        Closing it, or cancelling a task that iterates it, takes the request out before the next step; its KV
        slots then serve as cache until they are evicted.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, none at all, more tokens than the context holds.
            BackendError: The engine failed, or the backend was closed.
        """
        model = await self._connected()
        stream = model.stream(request)
        session = self._open_session(model)
        session.open(stream)
        try:
            finish_reason = None
            while finish_reason is None:
                piece = await stream.read()
                if stream.job.paused or stream.empty:  # the engine may have paused it while nobody read
                    session.resume()
                finish_reason = piece.finish_reason
                yield piece
        finally:
            await session.close(stream)

    async def load(self) -> EngineLoad | None:
        """What the scheduler counts, and how long steps take. Never waits, so there is nothing to cancel."""
        if (engine := self.engine) is None:
            return None
        return replace(engine.scheduler.load(), step_doubles_at=engine.step_times.doubles_at)

    async def aclose(self) -> None:
        """End open requests with an error and let the model go.

        A cancellation is raised after that. Requests of another event loop that still runs end as well.
        """
        self._closed = True
        session, self._session, self._model = self._session, None, None
        try:
            if session is not None and session.busy:
                await session.fail(BackendError(f"{self._path or 'local:'}: the backend was closed"))
        finally:
            self._executor.shutdown(wait=False)  # who waits to load finds it closed

    async def _connected(self) -> _Model:
        if self._closed:
            raise BackendError(f"{self._path or 'local:'}: the backend is closed")
        if self._model is None:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._load)
        model = self._model
        if model is None:
            raise BackendError(f"{self._path or 'local:'}: the backend was closed while it loaded")
        return model

    def _load(self) -> None:
        """In the engine's thread, so that two callers wait for one loading."""
        if self._model is None and not self._closed:
            model = _Model(self._path or default_model(), self._options)
            if not self._closed:
                self._model = model

    def _open_session(self, model: _Model) -> Session:
        from pasta_async.backends.local.session import Session

        if (session := self._session) is not None:
            if session.loop is asyncio.get_running_loop():
                return session
            if session.busy:
                raise BackendError(f"{self._path or 'local:'}: the backend is in use on another event loop")
            model.engine_loop.submit(model.engine_loop.drop_abandoned)
        self._session = Session(model.engine_loop, self._executor)
        return self._session


class _Model:
    """What loading brings. Making one imports torch."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        try:
            import numpy as np
            import torch

            from pasta_async.backends.local.checkpoint import weight_count
            from pasta_async.backends.local.engine import Engine, EngineOptions
            from pasta_async.backends.local.opening import open_checkpoint
            from pasta_async.backends.local.session import EngineLoop
            from pasta_async.backends.tokenization import AsyncTextCodec

            checkpoint = open_checkpoint(path)
        except ModuleNotFoundError as error:
            raise BackendError(str(missing_extra("local:", "local", error))) from error
        self.codec = checkpoint.codec()
        small = weight_count(checkpoint.config) < _SMALL
        chosen = EngineOptions(**options)
        threads = chosen.threads or (1 if small else torch.get_num_threads())
        default = _use_threads(threads)
        self.engine = Engine(checkpoint, chosen._replace(threads=threads))
        self.text = AsyncTextCodec(self.codec, self.engine.context_length)
        self.engine_loop = EngineLoop(self.engine)
        self._defaults = checkpoint.generation_defaults()
        self._exempt = np.array([*(self.codec.tags or ()), *self.codec.end_ids], np.int64)
        _use_threads(self.engine.torch_threads, default)
        tokens, rows = self.codec.vocab_size, self.engine.config.vocab_size
        if tokens > rows:
            raise UnsupportedModelError(f"{path}: the tokenizer has {tokens} tokens, the model {rows}")
        self.info = ModelInfo(
            name=path.name,
            context_length=self.engine.context_length,
            vocab_size=rows,
            end_ids=self.codec.end_ids,
            tags=self.codec.tags,
            honours_seeds=True,
            dtype=self.engine.dtype,
        )
        _LOG.info("%s: %d million weights, %s", path.name, self.engine.weights // 10**6, self.engine.dtype)

    def stream(self, request: DecodeRequest) -> Stream:
        """A request as the engine takes it."""
        from pasta_async.backends.local.sampler import TokenSampler
        from pasta_async.backends.local.scheduler import Job
        from pasta_async.backends.local.session import PieceWriter, Stream

        ids = _checked(request, self.info)
        sampler = TokenSampler(
            request.sampling,
            request.seed,
            request.extra.get("logits_processor"),
            (*request.banned_ids, *self._defaults.suppress_tokens),
            penalty=self._defaults.repetition_penalty,
            exempt=self._exempt,
            tags=request.grammar and request.grammar.begin(request.ids),
        )
        stops = (*request.stop_ids, *self.info.end_ids)
        job = Job(request.answer, ids, request.max_tokens, sampler, stops)
        return Stream(job, PieceWriter(request, self.codec))


def _check_options(numbers: Mapping[str, Any], device: Any, dtype: Any) -> None:
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InvalidRequestError(f"{name} must be an integer of at least 1, not {value!r}")
    if (numbers["threads"] or 1) > _MOST_THREADS:
        raise InvalidRequestError(f"threads must be at most {_MOST_THREADS}, not {numbers['threads']}")
    if dtype is not None and dtype not in _DTYPES:
        raise InvalidRequestError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
    if device is not None and not (isinstance(device, str) and _DEVICE.fullmatch(device)):
        raise InvalidRequestError(f"device must be cpu, cuda, cuda:1 or the like, not {device!r}")


def checked_path(path: Any) -> str | Path:
    """The path; `InvalidRequestError` if no file system has such a one."""
    try:
        encoded = os.fsencode(path)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"{path!r:.80} is no path: {error}") from error
    if b"\0" in encoded or len(encoded) > 4095 or any(len(part) > 255 for part in encoded.split(b"/")):
        raise InvalidRequestError(f"{path!r:.80} is no path that a file system takes")
    return path


def _checked_ids(ids: Sequence[int], info: ModelInfo) -> NDArray[np.int64]:
    """The ids as an array; only what is in the vocabulary."""
    import numpy as np

    array = np.array(ids) if len(ids) else np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidRequestError("token ids must be integers that fit in 64 bits")
    wrong = array[(array < 0) | (array >= info.vocab_size)]
    if len(wrong):
        raise InvalidRequestError(
            f"token id {wrong[0]} is outside the vocabulary of {info.name} ({info.vocab_size})"
        )
    return array.astype(np.int64)


def _checked(request: DecodeRequest, info: ModelInfo) -> NDArray[np.int64]:
    """The context of a request that the engine can work on."""
    ids = _checked_ids(request.ids, info)
    if not len(ids):
        raise InvalidRequestError("the context is empty: decoding needs at least one token")
    if request.max_tokens < 0:
        raise InvalidRequestError(f"max_tokens must not be negative, as {request.max_tokens} is")
    if len(ids) + request.max_tokens > info.context_length:
        raise InvalidRequestError(
            f"{len(ids)} context tokens and max_tokens {request.max_tokens} exceed the context length of "
            f"{info.name} ({info.context_length}): shorten the prompt or lower max_tokens"
        )
    return ids


def _use_threads(count: int, others: int | None = None) -> int:
    """Set the number of CPU threads for this thread's products; return the number before.

    torch keeps one number for each thread that has computed, and one for threads to come; setting it here
    changes both, so the second is set to `others` (None: what it was) from a thread of no further use.
    """
    import torch

    with _ONE_AT_A_TIME:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        restorer = threading.Thread(target=torch.set_num_threads, args=(others or before,))
        restorer.start()
        restorer.join()
    return before
