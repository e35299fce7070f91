"""The answer that the tests of the command line play, and the program in this process."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pasta_async import Backend
from pasta_async.cli import main
from pasta_async.clock import REAL_CLOCK
from pasta_async.testing import Fault, ScriptedBackend

INTRO = "Both wars reshaped Europe."
CAUSES = " The causes were many and old."
OUTCOME = " The outcome was a new map."
END = " Neither was foreseen."
TEXT = INTRO + CAUSES + OUTCOME + END
WRITTEN = (
    f'{INTRO}<promise topic="causes" tokens="20"/><async>{CAUSES}</async>'
    f'<promise topic="outcome" tokens="10"/><async>{OUTCOME}</async><sync/>{END}'
)


def scripted(*faults: Fault) -> ScriptedBackend:
    """Plays the answer in real time, without latencies."""
    return ScriptedBackend(WRITTEN, clock=REAL_CLOCK, faults=faults)


class Result(NamedTuple):
    """The exit code of a run, and its output."""

    code: int
    out: str
    err: str


def pasta(*arguments: str | Path, backend: Backend | None = None, stdin: str | bytes = "") -> Result:
    """Run `pasta-async` in this process; a backend stands in for the one that it would open."""
    content = stdin.encode() if isinstance(stdin, str) else stdin
    streams = [io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="") for data in (content, b"", b"")]
    with pytest.MonkeyPatch.context() as patched:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patched.setattr(sys, name, stream)
        if backend is not None:

            def opened(_: str, **__: object) -> Backend:
                return backend

            patched.setattr("pasta_async.client.open_backend", opened)
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
    code = ended.value.code
    assert isinstance(code, int)
    out, err = map(_written, streams[1:])
    return Result(code, out, err)


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
