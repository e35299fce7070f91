"""Event loops for all tests, and watchmen for calls that block and tasks that are left behind."""

from __future__ import annotations

import os

# Before torch is imported: threads that wait for each other stand still on a busy machine.
os.environ["OMP_NUM_THREADS"] = "1"

import asyncio
import logging
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

from tests.pasta_tiny import PASTA_TINY

if TYPE_CHECKING:
    from pasta_async.backends.local import LocalBackend

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

UNCHECKED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)
"""Health checks that are off for all tests: documents are large, and engines and folders are shared."""

settings.register_profile("common", deadline=None, suppress_health_check=UNCHECKED)
_common = settings.get_profile("common")
settings.register_profile("usual", _common, max_examples=50, derandomize=True, database=None)
settings.register_profile("thorough", _common, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))

NEVER_BLOCK = ("interpreter", "client", "testing")
"""Tests, below this folder, in which no call may block the loop. Others load models, or start servers."""

_loops: list[asyncio.AbstractEventLoop] = []
"""Loops that this file made and that are still open."""

_complaints: list[dict[str, Any]] = []
"""Reports of loops since the running test began: exceptions that nobody took."""


@pytest.fixture(autouse=True)
def one_torch_thread() -> Generator[None]:
    """An engine takes all cores for torch; the next test has one thread again."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def loggers() -> Generator[None]:
    """The loggers that a server configures, left as they were."""
    loggers = [
        logging.getLogger(name) for name in ("pasta_async", "uvicorn", "uvicorn.error", "uvicorn.access")
    ]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "loop_matrix: run under every kind of event loop")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with SGLang, then with the files whose tests may take the longest: none is left for the end."""

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return marker.args[0] if marker else 0.0

    longest: dict[Path, float] = {}
    for item in items:
        longest[item.path] = max(longest.get(item.path, 0.0), limit(item))
    items.sort(key=lambda item: (item.path.parent.name != "sglang", -longest[item.path]))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Start one of two processes (`-n 2`) with SGLang; the other takes file by file of the rest."""
    config.option.loadscopereorder = False  # it would begin with the files of many tests
    return _ByServer(config, log)


class _ByServer(LoadScopeScheduling):
    """Keeps the tests of SGLang, which share a server, in one process, and those of any other file."""

    def _split_scope(self, nodeid: str) -> str:
        return "SGLang" if nodeid.startswith("tests/sglang/") else nodeid.split("::")[0]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Plain asyncio, and for tests marked `loop_matrix` every other kind as well."""
    if item.get_closest_marker("loop_matrix") is None:
        return {"asyncio": _watched(asyncio.new_event_loop)}
    kinds: dict[str, LoopFactory] = {
        "asyncio": asyncio.new_event_loop,
        "uvloop": uvloop.new_event_loop,
        "debug": _DebugLoop,
    }
    if hasattr(asyncio, "eager_task_factory"):  # from Python 3.12 on
        kinds["eager"] = _eager_loop
    return {name: _watched(kind) for name, kind in kinds.items()}


class _DebugLoop(asyncio.SelectorEventLoop):
    """A loop in debug mode for good: whoever runs it would set that anew."""

    def set_debug(self, enabled: bool) -> None:
        super().set_debug(True)


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - not in Python 3.11
    return loop


def _watched(kind: LoopFactory) -> LoopFactory:
    def make() -> asyncio.AbstractEventLoop:
        loop = kind()
        loop.set_exception_handler(lambda _, context: _complaints.append(context))
        _loops[:] = [loop, *(other for other in _loops if not other.is_closed())]
        return loop

    return make


def _tasks() -> set[asyncio.Task[Any]]:
    return {task for loop in _loops if not loop.is_closed() for task in asyncio.all_tasks(loop)}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that leaves tasks behind (beside those of its fixtures) or exceptions that nobody took."""
    before = _tasks()
    _complaints.clear()
    result = yield
    if left := _tasks() - before:
        pytest.fail("left tasks behind:\n" + "\n".join(map(repr, left)), pytrace=False)
    if _complaints:
        pytest.fail("the loop reported:\n" + "\n".join(map(str, _complaints)), pytrace=False)
    return result


@pytest.fixture(autouse=True)
def _no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """A call that blocks a running loop is an error, in the folders that `NEVER_BLOCK` names."""
    path = request.path.relative_to(Path(__file__).parent).as_posix()
    in_debug = re.search(r"\bdebug\b", request.node.name)  # which looks up source lines all the time
    if in_debug or not path.startswith(NEVER_BLOCK):
        yield
        return
    with blockbuster_ctx():  # imports, line caches and pytest's own files are exempt from the start
        yield


@pytest.fixture(autouse=True, scope="session")
def _listens_to_ctrl_c() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Ctrl-C works, also in a run that was started in the background, where it is ignored.

    Python's own handler is set; a process that is started meanwhile has the system's.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("PASTA_ASYNC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
async def local() -> AsyncIterator[LocalBackend]:
    """The embedded engine with pasta-tiny, which computes in float32 as the servers of the tests do."""
    from pasta_async.backends.local import LocalBackend

    engine = LocalBackend(PASTA_TINY, dtype="float32")
    yield engine
    await engine.aclose()
