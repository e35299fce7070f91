"""The script for a borrowed machine, small, on the real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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


def test_one_run_gives_one_table_and_is_gone_on_with(
    server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    documents, out = tmp_path / "documents.jsonl", tmp_path / "out"
    rows = [
        {"id": str(number), "messages": [{"role": "user", "content": prompt}], "written": written}
        for number, (prompt, written) in enumerate(ANSWERS.items())
    ]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [*("--backend", server.url, "--model", str(server.model), "--documents", str(documents))]
    command += [
        *(
            "--out",
            str(out),
            "--passes",
            "1",
            "--at-once",
            "1",
            "--at-once",
            "2",
            "--answers",
            "2",
            "--context",
            "32",
        )
    ]
    run(main, "", *command)
    told = capsys.readouterr().out
    assert (out / "table.md").read_text() == told
    found = dict(line.strip("| ").split(" | ") for line in told.split("\n\n")[0].splitlines()[2:])
    (steps,) = (value for name, value in found.items() if name.startswith("decode step, ms, 1 / 2 / 4 / 8"))
    assert all(float(value) > 0 for value in steps.split(" / "))
    assert any(float(value) > 1 for value in found["step / floor"].split(" / "))
    forks = found["context cached at forks: spawned mid-stream / cut at the promise"]
    joins = found["context cached at joins: spawned mid-stream / cut at the promise"]
    stream, cut = (int(value.removesuffix("%")) for value in forks.split(" / "))
    assert 0 < stream < cut < 100
    assert all(0 < int(value.removesuffix("%")) < 100 for value in joins.split(" / "))
    fewer, more = map(int, found["round trips: mid-stream / cut"].split(" / "))
    assert (fewer, more) == (4, 6)
    assert "sooner than in sequence, 1 / 2 at once" in found

    files = ("speed.jsonl", "load.jsonl", "steps.jsonl", "fork_modes.jsonl")
    kept = {name: [r for r in _rows(out / name) if "environment" not in r] for name in files}
    run(main, "", *command)  # nothing is left to measure
    assert kept == {name: [r for r in _rows(out / name) if "environment" not in r] for name in files}
    assert server.running() == 0


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
