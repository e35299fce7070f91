"""The examples, and the README's code, do what they say with the model that ships."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("test_"))
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(code: list[str], cwd: Path) -> str:
    """What a program prints, with warnings as errors and no settings from outside."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PASTA_")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-W", "error", *code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    assert run([str(path)], tmp_path).strip()


def test_quickstart_is_right(tmp_path: Path) -> None:
    printed = run([str(ROOT / "examples" / "quickstart.py")], tmp_path)
    assert "So the count of Velora is 9." in printed
    assert "The total is 19 fruits." in printed


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_readme_snippet_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(code)
    if "async def test_" in code:
        options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
        run(["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "snippet.py"], tmp_path)
    else:
        assert run(["snippet.py"], tmp_path).strip()
