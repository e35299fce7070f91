"""`sglang.Engine` on a thread of its own.

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
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["EngineThread"]


class EngineThread:
    """Starts an engine, runs what it is asked to on the engine's loop, and ends its processes.

    Args:
        arguments: Arguments of `sglang.Engine`.
        on_cpu: Whether placeholders stand for the GPU packages.
    """

    def __init__(self, arguments: dict[str, Any], *, on_cpu: bool) -> None:
        self._arguments = arguments
        self._on_cpu = on_cpu
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pasta-sglang", daemon=True)
        self.engine: concurrent.futures.Future[Any] = concurrent.futures.Future()
        """The engine, or why there is none."""

    def start(self) -> None:
        """Start loading; `engine` tells when it is done."""
        self._thread.start()

    def submit(self, work: Awaitable[None]) -> concurrent.futures.Future[None]:
        """Run a coroutine on the engine's loop."""

        async def run() -> None:
            await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the engine's loop, soon."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the engine and its processes; blocks until they are gone."""
        if self._thread.is_alive():
            concurrent.futures.wait([self.engine])
            if not self.engine.exception():
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        before = multiprocessing.active_children()
        engine: Any = None
        try:
            engine = self._load()
        except BaseException as error:
            self._close(None, before)
            self.engine.set_exception(error)
            return
        self.engine.set_result(engine)
        self._loop.run_forever()
        self._close(engine, before)

    def _load(self) -> Any:
        policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
        try:
            if self._on_cpu:
                importlib.import_module("pasta_async.backends.sglang.cpu").install()
            kind: Any = importlib.import_module("sglang.srt.entrypoints.engine").Engine
        finally:
            asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated]
        engine = (_on_placeholders(kind, self._arguments) if self._on_cpu else kind)(**self._arguments)
        atexit.unregister(engine.shutdown)  # it kills every child of this process
        atexit.register(self.stop)
        return engine

    def _close(self, engine: Any, before: Sequence[Any]) -> None:
        if engine is not None:
            atexit.unregister(self.stop)
            engine.tokenizer_manager._subprocess_watchdog.stop()
            engine.send_to_rpc.close(linger=0)
            own: list[int | None] = engine.get_all_child_pids()
        else:
            own = [child.pid for child in multiprocessing.active_children() if child not in before]
        children = [child for child in multiprocessing.active_children() if child.pid in own]
        for child in children:
            child.kill()
        for child in children:
            child.join()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()


def _on_placeholders(kind: Any, arguments: dict[str, Any]) -> Any:
    """The engine class whose processes start with the placeholders."""
    workers = importlib.import_module("pasta_async.backends.sglang.cpu.workers")
    if arguments.get("enable_deterministic_inference"):
        seeded = importlib.import_module("pasta_async.backends.sglang.cpu.seeded")
        seeded.allow()
        seeded.without_batch_invariance()
    functions = {
        "run_scheduler_process_func": staticmethod(workers.run_scheduler),
        "run_detokenizer_process_func": staticmethod(workers.run_detokenizer),
    }
    return type("Engine", (kind,), functions)
