"""The script for a borrowed machine, small, on the real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from commands_run import run

from pasta_async.evals.hardware import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from real_server import RealServer

CHUNKS = "".join(
    f'<promise topic="{name}" tokens="20"/><async> {name} came{" and went" * 8}.</async>'
    for name in ("Anna", "Ben")
)
ANSWERS = {"Well?": f"Two people:{CHUNKS}<sync/> That is all.", "And?": "Nobody came."}


def test_one_run_gives_all_tables_and_is_gone_on_with(
    server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    documents, out = tmp_path / "documents.jsonl", tmp_path / "out"
    rows = [
        {"id": str(number), "messages": [{"role": "user", "content": prompt}], "written": written}
        for number, (prompt, written) in enumerate(ANSWERS.items())
    ]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [*("--backend", server.url, "--documents", str(documents))]
    small = "--passes 1 --at-once 1 --at-once 2 --answers 2 --out"
    run(main, small, out, *command)
    printed = capsys.readouterr().out
    assert (out / "tables.md").read_text() == printed
    assert "| pasta | 2 |" in printed and "| sequential | 2 |" in printed
    assert "| 2 at once | pasta | 4 |" in printed

    kept = {name: _measured(out / name) for name in ("methods.jsonl", "load.jsonl")}
    run(main, small, out, *command)  # nothing is left to measure
    assert kept == {name: _measured(out / name) for name in kept}
    assert server.running() == 0


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _measured(path: Path) -> list[dict[str, Any]]:
    return [row for row in _rows(path) if "environment" not in row]
