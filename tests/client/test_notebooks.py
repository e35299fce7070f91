"""In IPython, and so in a notebook: answers are awaited at the top level, and options are completed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CELLS = """
import pasta_async
from IPython.core.completer import provisionalcompleter
from pasta_async.testing import ScriptedBackend

backend = ScriptedBackend('Both. <promise topic="tea" tokens="10"/><async>Tea.</async><sync/> Enough.')
print((await pasta_async.generate("Why?", backend=backend, temperature=0.5)).text)
client = pasta_async.Client(backend)
for _ in range(2):
    print((await client.generate("Why?")).text)
async with client.stream("Why?") as answer:
    print("".join([delta async for delta in answer.text_deltas()]))

for call in ("pasta_async.generate", "pasta_async.stream", "client.generate", "client.stream"):
    for begun in ("temp", "max_t", "paral"):
        text = f"{call}('Why?', {begun}"
        with provisionalcompleter():
            found = [found.text for found in get_ipython().Completer.completions(text, len(text))]
        print(call, *(name for name in ("temperature=", "max_tokens=", "parallel=") if name in found))
"""


def test_answers_are_awaited_and_options_completed(tmp_path: Path) -> None:
    cells = tmp_path / "cells.ipy"
    cells.write_text(CELLS)
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(cells)],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    lines = done.stdout.splitlines()
    assert lines[:4] == ["Both. Tea. Enough."] * 4, done.stdout + done.stderr
    assert lines[4:] == [
        f"{call} {option}="
        for call in ("pasta_async.generate", "pasta_async.stream", "client.generate", "client.stream")
        for option in ("temperature", "max_tokens", "parallel")
    ]
