"""SGLang inside this process: `sglang.Engine` behind the backend protocol.

SGLang takes the program it runs in for its own: importing it sets uvloop's event-loop policy, an engine
installs signal handlers and binds itself to the first event loop that uses it, and shutting it down kills
every child of the process. The policy is put back here, a thread with a loop of its own avoids the handlers
and the bond, and the engine's own children are ended instead.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import importlib
import multiprocessing
import os
import signal
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from pasta_async.backends.sglang.common import ABORT_SECONDS, ServedModel, SGLangProtocol, request_ids
from pasta_async.backends.sglang.launch import CPU_ENVIRONMENT, engine_arguments, find_device
from pasta_async.errors import BackendError, BackendStatusError, UnsupportedModelError
from pasta_async.protocol import ModelInfo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
    from multiprocessing.process import BaseProcess

    from pasta_async.backends.sglang.launch import Device
    from pasta_async.backends.tokenization import TextCodec
    from pasta_async.protocol import DecodeRequest

__all__ = ["EngineBackend"]


class EngineBackend(SGLangProtocol):
    """SGLang's engine in this process, with its workers as child processes.

    The program's event-loop policy and signal handlers stay as they are, and one backend serves any number of
    event loops one after another. Programs that use it need the usual ``if __name__ == "__main__":``, since
    the workers are spawned. If a worker crashes while it serves, SGLang ends the whole program (SIGQUIT).

    Args:
        path: A model folder.
        device: Where to run; None looks for a GPU.
        server_args: Further arguments of `sglang.Engine`, which win over those chosen here.
    """

    def __init__(self, path: str | Path, *, device: Device | None = None, **server_args: Any) -> None:
        self._path = Path(path)
        self._device: Device | None = device
        self._arguments = server_args
        self._thread: _EngineThread | None = None
        self._model: ServedModel | None = None
        self._rids = request_ids()

    async def connect(self) -> ModelInfo:
        """Start the engine, once.

        Cancelling stops the wait, not the start: a later call takes it up, and `aclose` ends it.

        Raises:
            UnsupportedModelError: The folder holds no model that can be used.
            BackendError: SGLang is missing, or could not start.
        """
        return await super().connect()

    async def _connected(self) -> ServedModel:
        if self._model is None:
            codec = await asyncio.to_thread(self._read_tokenizer)
            if self._thread is None:
                device = find_device(self._device)
                arguments = {"model_path": str(self._path), **engine_arguments(device), **self._arguments}
                self._thread = _EngineThread(arguments, CPU_ENVIRONMENT if device == "cpu" else {})
            with _spared_from_quitting():
                try:
                    engine = await asyncio.shield(asyncio.wrap_future(self._thread.engine))
                except Exception as error:
                    raise BackendError(
                        f"SGLang could not start on {self._path}: {error} (what a worker reports is in this "
                        "program's standard error)"
                    ) from error
            self._model = self._learn(engine, codec)
        return self._model

    def _read_tokenizer(self) -> TextCodec:
        if not (self._path / "config.json").is_file():
            raise UnsupportedModelError(f"{self._path} is no model folder: it has no config.json")
        return importlib.import_module("pasta_async.backends.tokenization").TextCodec.from_folder(self._path)

    def _learn(self, engine: Any, codec: TextCodec) -> ServedModel:
        from pasta_async.backends.tokenization import AsyncTextCodec

        manager = engine.tokenizer_manager
        info = ModelInfo(
            name=self._path.name,
            context_length=min(manager.context_len, manager.max_req_input_len),
            vocab_size=manager.model_config.vocab_size,
            end_ids=tuple(sorted({*codec.end_ids, *(manager.model_config.hf_eos_token_id or ())})),
            tags=codec.tags,
            honours_seeds=bool(engine.server_args.enable_deterministic_inference),
        )
        incremental = self._arguments.get("incremental_streaming_output", True)
        return ServedModel(info, AsyncTextCodec(codec, info.context_length), incremental)

    @asynccontextmanager
    async def _send(self, request: DecodeRequest, body: dict[str, Any]) -> AsyncGenerator[_Call]:
        assert self._thread is not None
        if request.headers:
            body["external_trace_header"] = dict(request.headers)
        call = _Call(self._thread, {**body, "rid": next(self._rids)})
        try:
            yield call
        finally:
            await call.end()

    async def aclose(self) -> None:
        """End the engine and its processes. Open requests end; cancelling does not stop the ending."""
        if self._thread is not None:
            thread, self._thread, self._model = self._thread, None, None
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(thread.stop)


class _EngineThread:
    """Starts an engine, runs what it is asked to on the engine's loop, and ends its processes.

    Args:
        arguments: Arguments of `sglang.Engine`.
        environment: Variables that SGLang wants to find, unless they are set.
    """

    def __init__(self, arguments: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._environment = environment
        self.loop = asyncio.new_event_loop()
        self.engine: concurrent.futures.Future[Any] = concurrent.futures.Future()
        """The engine, or why there is none."""
        self._thread = threading.Thread(target=self._run, name="pasta-sglang", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[None, None, None]) -> concurrent.futures.Future[None]:
        """Run a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """End the engine and its processes; blocks until they are gone."""
        if self._thread.is_alive():
            concurrent.futures.wait([self.engine])
            if not self.engine.exception():
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        before = multiprocessing.active_children()
        try:
            engine = self._load()
        except BaseException as error:
            self._close([child for child in multiprocessing.active_children() if child not in before])
            self.engine.set_exception(error)
            return
        self.engine.set_result(engine)
        self.loop.run_forever()
        atexit.unregister(self.stop)
        engine.tokenizer_manager._subprocess_watchdog.stop()
        engine.send_to_rpc.close(linger=0)
        own: list[int | None] = engine.get_all_child_pids()
        self._close([child for child in multiprocessing.active_children() if child.pid in own])

    def _load(self) -> Any:
        policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
        for name, value in self._environment.items():
            os.environ.setdefault(name, value)
        try:
            kind: Any = importlib.import_module("sglang.srt.entrypoints.engine").Engine
        finally:
            asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated]
        engine = kind(**self._arguments)
        atexit.unregister(engine.shutdown)  # it kills every child of this process
        atexit.register(self.stop)
        return engine

    def _close(self, children: Sequence[BaseProcess]) -> None:
        """End these processes, the loop's tasks and the loop."""
        for child in children:
            child.kill()
        for child in children:
            child.join()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()


class _Call:
    """One request in the engine, which runs on another thread's loop."""

    def __init__(self, thread: _EngineThread, body: dict[str, Any]) -> None:
        self._thread = thread
        self._rid = body["rid"]
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[dict[str, Any] | BackendError | None] = asyncio.Queue()
        self._ended = thread.submit(self._pump(body))
        self.over = False

    async def _pump(self, body: dict[str, Any]) -> None:
        """On the engine's loop: hand events over, last None or what went wrong."""
        last: BackendError | None = BackendError("the backend was closed")
        try:
            answer: Any = await self._thread.engine.result().async_generate(**body)
            if body["stream"]:
                async for event in answer:
                    self._put(event)
            else:
                self._put(answer)
            last = None
        except ValueError as error:
            last = BackendStatusError(f"SGLang refused the request: {error}", status=400)
        except Exception as error:
            last = BackendError(f"SGLang failed: {error}")
        finally:
            self._put(last)

    def _put(self, event: dict[str, Any] | BackendError | None) -> None:
        with suppress(RuntimeError):  # whoever asked has closed its loop
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self) -> dict[str, Any] | None:
        """The next event, None at the end."""
        event = await self._events.get()
        if isinstance(event, BackendError):
            raise event
        return event

    async def end(self) -> None:
        """Abort it, unless it has ended, and wait for its end."""
        if not self._ended.done():
            manager: Any = self._thread.engine.result().tokenizer_manager
            self._thread.loop.call_soon_threadsafe(lambda: manager.abort_request(rid=self._rid))
            with anyio.move_on_after(ABORT_SECONDS, shield=True):
                await asyncio.wait([asyncio.wrap_future(self._ended)])


@contextmanager
def _spared_from_quitting() -> Generator[None]:
    """While SGLang starts: a worker that fails tells its parent by SIGQUIT, which would end the program."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGQUIT) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGQUIT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
