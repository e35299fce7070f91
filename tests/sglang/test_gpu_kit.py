"""evals/gpu.sh from end to end on a CPU: the real SGLang with a tiny model."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.project_files import ROOT
from tests.helpers.real_server import free_port, require_sglang
from tests.pasta_tiny import PASTA_TINY, examples

OF_LARGE = ("large-invoices", "large-profiles", "large-speed")
TABLES = ("trained-speed", "methods", "load", "speed-without-plug-in", *OF_LARGE)


def run(folder: Path, serve: str, sample: int = 2) -> subprocess.CompletedProcess[str]:
    variables = {
        "OUT": str(folder / "out"),
        "PROMPTS": str(folder / "prompts.jsonl"),
        "SAMPLE": str(sample),
        "LARGE": str(PASTA_TINY),
        "TRAINED": str(PASTA_TINY),
        "BIN": str(Path(sys.executable).parent),
        "ENGINES": "sglang",
        "SGLANG": serve,
        "PORT": str(free_port()),
        "DEVICE": "cpu",
        "DTYPE": "float32",
        "LOADS": "--at-once 2 --answers 2 --rounds 1",
    }
    command = ["sh", str(ROOT / "evals" / "gpu.sh")]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    "PASTA_TEST_LONG" not in os.environ, reason="it takes six minutes: PASTA_TEST_LONG=1 runs it"
)
@pytest.mark.timeout(1200)  # three servers start, and eight commands
def test_the_kit_measures_everything_once(tmp_path: Path) -> None:
    require_sglang()
    answered = [(example.prompt, example.document.text) for example in examples("offers")[:4]]
    rows = (json.dumps({"instruction": prompt, "output": text}) + "\n" for prompt, text in answered)
    (tmp_path / "prompts.jsonl").write_text("".join(rows))
    program = ROOT / "tests" / "helpers" / "serve_on_cpu.py"
    serve = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, str(program)])
    done = run(tmp_path, serve)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["tables"].keys() == {"settings", *(f"sglang-{name}" for name in TABLES)}
    assert all(result["tables"].values())
    with_it, without = (
        {row[""]: row["parallel"] for row in result["tables"][f"sglang-{name}"]}["cached %"]
        for name in ("trained-speed", "speed-without-plug-in")
    )
    assert float(with_it) > float(without)
    again = run(tmp_path, "false")  # no server has to start again
    assert again.returncode == 0, again.stderr
    assert "measuring" not in again.stdout
    other = run(tmp_path, "false", sample=3)
    assert other.returncode == 1
    assert "other settings" in other.stderr
