"""The recipes: pasta-smol.sh from end to end on a tiny model, and every option of every recipe."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from pasta_async.lang import check
from pasta_async.training.data.corpus import read_prompts, read_records
from pasta_async.training.samples import read_scores
from tests.pasta_tiny import EXAMPLES, PASTA_TINY

RECIPES = sorted(Path(__file__).parents[2].glob("training/recipes/*.sh"))
PROMPTS = Path(__file__).parents[2] / "training" / "data" / "prompts.jsonl.gz"


def run(recipe: Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe, with the interpreter of the tests as `python`."""
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        ["sh", str(recipe)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(1800)  # a dozen commands, each of which imports torch
def test_pasta_smol_from_the_prompts_to_the_folder_that_ships(tmp_path: Path) -> None:
    for name in ("alpaca_eval", "ifeval"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"instruction": f"Nothing of {name}."}) + "\n")
    (tmp_path / "dolly.jsonl.gz").write_bytes(PROMPTS.read_bytes())
    sizes = {"OURS": "40", "DOLLY": "1", "FRESH": "8", "UPDATES": "2"}
    variables = {"BASE": str(PASTA_TINY), "PROMPTS": str(EXAMPLES), "OUT": "run", **sizes}
    done = run(RECIPES[-1], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "run"
    annotated = list(read_records(out / "annotated" / "annotated.jsonl"))
    assert any(record.document.promises for record in annotated)
    assert all(not check(record.written) for record in annotated)
    assert read_scores(out / "round2" / "scores.jsonl")
    assert {"adapter_model.safetensors", "generation_config.json"} <= {
        path.name for path in (out / "shipped").iterdir()
    }


def commands(recipe: Path, folder: Path) -> list[list[str]]:
    """The arguments of every `python` that a recipe calls, none of which is run."""
    log = folder / "calls"
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" "" >> {shlex.quote(str(log))}\n')
    python.chmod(0o755)
    server = python.with_name("pasta-async")  # which a recipe starts as a server: it ends at once
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    out = folder / "runs" / recipe.stem
    (out / "annotated").mkdir(parents=True)
    for name in ("ours", "plain", "annotated/annotated"):  # which a recipe takes lines of
        (out / f"{name}.jsonl").write_text('{"id":"tips/1"}\n{"id":"story/1", "written": "<promise/>"}\n')
    done = run(recipe, folder)
    assert done.returncode == 0, done.stderr
    return [call.split("\n") for call in log.read_text().rstrip("\n").split("\n\n")]


@pytest.mark.parametrize("recipe", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_option_of_a_recipe_is_one_of_its_command(recipe: Path, tmp_path: Path) -> None:
    called = commands(recipe, tmp_path)
    assert len(called) > 5
    for call in called:
        module = next(part for part in call if part.startswith("pasta_async."))
        found = vars(importlib.import_module(module)).values()
        classes = [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)]
        fields = {name for kind in classes if kind.__module__ == module for name in kind.model_fields}
        options = [part for part in call[call.index(module) :] if part.startswith("--")]
        assert {option[2:].replace("-", "_") for option in options} <= fields, call


def test_the_prompts_that_ship_have_ids_and_forms_that_are_patterns() -> None:
    records = list(read_records(PROMPTS))
    assert len(records) == 6000
    assert sum(bool(record.form) for record in records) > 2500
    assert all(record.prompt and not record.written for record in records)
    assert len(set(read_prompts(PROMPTS))) == 6000
