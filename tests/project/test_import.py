"""`import pasta_async` is light: no heavy package, and soon done."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "sglang", "transformers", "tokenizers", "numpy", "typer", "rich")


def in_a_fresh_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_no_heavy_package() -> None:
    program = f"import sys, pasta_async; print([name for name in {HEAVY} if name in sys.modules])"
    assert in_a_fresh_process(program) == "[]"


def test_import_takes_less_than_half_a_second() -> None:
    """Best of several, so that a busy machine does not decide."""
    program = (
        "import time; start = time.perf_counter(); import pasta_async; print(time.perf_counter() - start)"
    )
    assert min(float(in_a_fresh_process(program)) for _ in range(5)) < 0.5
