"""`LocalBackend`: the embedded engine behind the protocol that the interpreter asks for."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError
from pasta_async.protocol import ModelInfo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from pasta_async.backends.local.session import Session
    from pasta_async.backends.local.stream import Stream
    from pasta_async.protocol import DecodeRequest, Message, Piece

__all__ = ["LocalBackend"]

_SHIPPED = "pasta-tiny"
_SMALL = 100_000_000  # weights; below this the products are too small to share between threads
_LONG_TEXT = 20_000  # characters; longer ones are encoded off the event loop


class LocalBackend:
    """Decodes in this process, on a CPU or on CUDA, with Llama, Qwen2 and Qwen3 checkpoints.

    All live threads of all answers share one forward pass for each step. Keys and values are shared through a
    radix tree, also between threads that are still running: a fork copies nothing.

    A slow reader pauses its own request and nothing else. When KV slots run out, requests wait; those that
    could never fit are refused at once. One event loop at a time; another may follow.

    Args:
        path: Checkpoint folder in Hugging Face's layout (safetensors, tokenizer.json, config.json); None for
            the model that ships with pasta_async.
        device: ``"cpu"``, ``"cuda"``, ...; None for CUDA where there is one.
        dtype: ``"float32"`` (default), ``"bfloat16"`` or ``"float16"``, whatever the files hold.
        slots: Tokens whose keys and values are kept; None for what a gibibyte holds, at most 32768.
        context_length: Limit of prompt and output together; None for the model's own, at most `slots`.
        max_running: Requests that decode at the same time; the others wait.
        step_tokens: Prompt tokens computed in one step; a long prompt takes several, and the others go on.
        threads: CPU threads of the engine; None for one if the model is small (more would wait for each
            other), else torch's own number. The rest of the process keeps its setting.
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
        step_tokens: int = 256,
        threads: int | None = None,
    ) -> None:
        numbers = {"max_running": max_running, "step_tokens": step_tokens, "threads": threads}
        for name, value in {**numbers, "slots": slots, "context_length": context_length}.items():
            if value is not None and value < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {value}")
        if dtype not in (None, "float32", "bfloat16", "float16"):
            raise InvalidRequestError(f"dtype must be float32, bfloat16 or float16, not {dtype!r}")
        self._folder = _shipped() if path is None else Path(path)
        self._options = (device, dtype, slots, context_length, max_running, step_tokens)
        self._threads = threads
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pasta_async-local")
        self._model: _Model | None = None
        self._session: Session | None = None
        self._closed = False

    async def connect(self) -> ModelInfo:
        """Load the model, once. Cancelling it leaves the loading to the engine's thread.

        Raises:
            UnsupportedModelError: The folder is missing or cannot be used; the message says why.
            BackendError: torch and the rest of the `local` extra are not installed, or the backend is closed.
        """
        return (await self._connected()).info

    async def encode(self, text: str) -> list[int]:
        """Encode text as data; decoding gives it back. May be cancelled."""
        model = await self._connected()
        if len(text) > _LONG_TEXT:
            return await asyncio.to_thread(model.codec.encode, text)
        return model.codec.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template, what stands in them as data. May be cancelled.

        Raises:
            InvalidRequestError: The template refuses them; or there is none, and there are several messages.
        """
        model = await self._connected()
        if sum(len(message.get("content", "")) for message in messages) > _LONG_TEXT:
            return await asyncio.to_thread(model.codec.encode_chat, messages, template_kwargs)
        return model.codec.encode_chat(messages, template_kwargs)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept, nothing added between them. May be cancelled."""
        return (await self._connected()).codec.detokenize(ids)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode, a piece for each step. See `pasta_async.protocol.Backend.decode`.

        Closing it, or cancelling a task that iterates it, takes the request out before the next step; its KV
        slots then serve as cache until they are evicted.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, none at all, more tokens than the context holds.
            BackendError: The engine failed, or the backend was closed.
        """
        model = await self._connected()
        _check(request, model.info)
        session = self._open_session(model)
        stream = model.stream(request)
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

    async def aclose(self) -> None:
        """End open requests with an error and let the model go. A cancellation is raised after that."""
        self._closed = True
        session, self._session, self._model = self._session, None, None
        try:
            if session is not None and session.busy:
                await session.fail(BackendError(f"{self._folder.name}: the backend was closed"))
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _connected(self) -> _Model:
        if self._closed:
            raise BackendError(f"{self._folder.name}: the backend is closed")
        if self._model is None:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._load)
        model = self._model
        if model is None:
            raise BackendError(f"{self._folder.name}: the backend was closed while it loaded")
        return model

    def _load(self) -> None:
        """In the engine's thread, so that two callers wait for one loading."""
        if self._model is None and not self._closed:
            self._model = _Model(self._folder, self._options, self._threads)

    def _open_session(self, model: _Model) -> Session:
        from pasta_async.backends.local.session import Session

        session, loop = self._session, asyncio.get_running_loop()
        if session is not None and session.loop is loop:
            return session
        if session is not None and session.busy:
            raise BackendError(f"{self._folder.name}: the backend is in use on another event loop")
        if session is not None and session.abandoned:
            model.stepper.submit(model.stepper.drop_abandoned)
        self._session = Session(model.stepper, self._executor)
        return self._session


class _Model:
    """What loading brings; imports torch."""

    def __init__(self, folder: Path, options: tuple[Any, ...], threads: int | None) -> None:
        if not folder.is_dir():
            raise UnsupportedModelError(f"there is no model folder {folder}")
        try:
            from pasta_async.backends.local.engine import Engine, EngineOptions
            from pasta_async.backends.local.session import Stepper
            from pasta_async.backends.tokenization import TextCodec
        except ModuleNotFoundError as error:
            raise BackendError(
                f"local: needs the module {error.name!r}, which is not installed; "
                "pip install 'pasta_async[local]' brings it"
            ) from error
        self.codec = TextCodec.from_folder(folder)
        self.engine = Engine(folder, EngineOptions(*options))
        self.stepper = Stepper(self.engine)
        _use_threads(threads or (1 if self.engine.weights < _SMALL else None))
        config = self.engine.config
        if self.codec.vocab_size > config.vocab_size:
            raise UnsupportedModelError(
                f"{folder}: the tokenizer has {self.codec.vocab_size} tokens, the model {config.vocab_size}"
            )
        self.info = ModelInfo(
            name=folder.name,
            context_length=self.engine.context_length,
            vocab_size=config.vocab_size,
            end_ids=self.codec.end_ids,
            tags=self.codec.tags,
            honours_seeds=True,
        )

    def stream(self, request: DecodeRequest) -> Stream:
        """A request as the engine takes it."""
        from pasta_async.backends.local.sampler import Chooser
        from pasta_async.backends.local.scheduler import Job
        from pasta_async.backends.local.stream import Stream, Writer

        chooser = Chooser(request.sampling, request.seed, request.extra.get("logits_processor"))
        stops = (*request.stop_ids, *self.info.end_ids)
        job = Job(request.answer, request.ids, request.max_tokens, chooser, stops)
        return Stream(job, Writer(request, self.codec))


def _shipped() -> Path:
    folder = Path(str(files("pasta_async") / "models" / _SHIPPED))
    if not folder.is_dir():
        raise UnsupportedModelError(
            f"the model {_SHIPPED} is missing from this installation: name a folder, local:/path"
        )
    return folder


def _check(request: DecodeRequest, info: ModelInfo) -> None:
    count = len(request.ids)
    if not count:
        raise InvalidRequestError("the context is empty: decoding needs at least one token")
    if min(request.ids) < 0 or max(request.ids) >= info.vocab_size:
        wrong = next(i for i in request.ids if not 0 <= i < info.vocab_size)
        raise InvalidRequestError(
            f"token id {wrong} is outside the vocabulary of {info.name} ({info.vocab_size})"
        )
    if request.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens must be at least 1, not {request.max_tokens}")
    if count + request.max_tokens > info.context_length:
        raise InvalidRequestError(
            f"{count} context tokens and max_tokens {request.max_tokens} exceed the context length of "
            f"{info.name} ({info.context_length}): shorten the prompt or lower max_tokens"
        )


def _use_threads(count: int | None) -> None:
    """Set the number of CPU threads for this thread's products only.

    torch keeps one number for each thread that has computed, and one for threads to come; setting it here
    changes both, so the second is put back from a thread of no further use.
    """
    import torch

    before = torch.get_num_threads()
    if count is None or count == before:
        return
    torch.set_num_threads(count)
    restorer = threading.Thread(target=torch.set_num_threads, args=(before,))
    restorer.start()
    restorer.join()
