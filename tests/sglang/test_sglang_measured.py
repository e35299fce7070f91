"""The commands that measure, on the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands_run import refused, run
from real_server import RealServer

from pasta_async.evals import load, methods, quality

CHUNKS = "".join(
    f'<promise topic="{name}" tokens="20"/><async> {name} came{" and went" * 8}.</async>'
    for name in ("Anna", "Ben")
)
ANSWERS = {"Well?": f"Two people:{CHUNKS}<sync/> That is all.", "And?": "Nobody came."}


def test_given_answers_are_timed_alone_and_under_load_and_a_run_is_gone_on_with(
    server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    documents = tmp_path / "documents.jsonl"
    rows = [
        {"id": str(number), "messages": [{"role": "user", "content": prompt}], "written": written}
        for number, (prompt, written) in enumerate(ANSWERS.items())
    ]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = f"--backend {server.url} --documents {documents} --methods sequential --methods pasta"
    small = "--at-once 1 --at-once 2 --answers 2 --rounds 1"
    commands = {
        tmp_path / "methods.jsonl": (methods.main, f"{common} --passes 1"),
        tmp_path / "load.jsonl": (load.main, f"{common} {small}"),
    }
    for out, (main, command) in commands.items():
        run(main, command, "--out", out)
    printed = capsys.readouterr().out
    assert "| pasta | 2 |" in printed and "| sequential | 2 |" in printed
    assert "| 2 at once | pasta | 4 |" in printed

    kept = {out: _measured(out) for out in commands}
    for out, (main, command) in commands.items():
        run(main, command, "--out", out)  # nothing is left to measure
    assert kept == {out: _measured(out) for out in kept}
    assert server.running() == 0


def test_answers_of_another_model_at_the_same_address_are_not_gone_on_with(
    server: RealServer, tmp_path: Path
):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("Well?\n")
    command = f"--backend {server.url} --prompts {prompts} --max-tokens 4 --out {tmp_path}"
    run(quality.main, command)
    identity, *rows = out.read_text().splitlines()
    served = json.loads(identity)["weights"][0]
    assert served
    out.write_text("\n".join([identity.replace(served, "another"), *rows, ""]))
    refused(quality.main, command)


def _measured(path: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, path.read_text().splitlines())
    return [row for row in rows if "environment" not in row]
