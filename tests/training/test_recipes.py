"""The recipes: pasta-smol.sh from end to end on a tiny model, and every option of every recipe."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from pasta_async.lang import parse
from pasta_async.training.data.corpus import read_prompts, read_records
from pasta_async.training.samples import read_scores
from tests.helpers.commands_run import status
from tests.pasta_tiny import EXAMPLES, PASTA_TINY

RECIPES = sorted(Path(__file__).parents[2].glob("training/recipes/*.sh"))
PROMPTS = Path(__file__).parents[2] / "training" / "data" / "prompts.jsonl.gz"


def variables(folder: Path, python: str, **more: str) -> dict[str, str]:
    """Variables for a recipe, whose `python` is this shell script; a server that it starts ends at once."""
    (folder / "bin").mkdir()
    for name, script in (("python", python), ("pasta-async", "")):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", **more}


@pytest.mark.timeout(600)
def test_pasta_smol_from_the_prompts_to_the_folder_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's shell hands each command to this process, which has imported torch already."""
    monkeypatch.chdir(tmp_path)
    for name in ("alpaca_eval", "ifeval"):
        Path(f"{name}.jsonl").write_text(json.dumps({"instruction": f"Nothing of {name}."}) + "\n")
    Path("dolly.jsonl.gz").write_bytes(PROMPTS.read_bytes())
    for name in ("calls", "ended"):
        os.mkfifo(name)
    sizes = {"OURS": "20", "DOLLY": "1", "FRESH": "4", "UPDATES": "2"}
    given = {"BASE": str(PASTA_TINY), "PROMPTS": str(EXAMPLES), "OUT": "run", **sizes}
    python = 'printf "%s\\n" "$@" > calls; read code < ended; exit $code'
    shell = ["sh", "-c", 'sh "$0"; echo $? > calls', str(RECIPES[0].with_name("pasta-smol.sh"))]
    codes: list[int | str | None] = []
    with subprocess.Popen(shell, env=variables(tmp_path, python, **given)):
        while len(called := Path("calls").read_text().splitlines()) > 1:
            _, module, *options = called
            codes.append(status(importlib.import_module(module).main, *options))
            Path("ended").write_text("1\n" if codes[-1] else "0\n")
    assert (called, {*codes}) == (["0"], {0})
    out = tmp_path / "run"
    annotated = list(read_records(out / "annotated" / "annotated.jsonl"))
    assert any(record.document.promises for record in annotated)
    assert all(not parse(record.written).diagnostics for record in annotated)
    assert read_scores(out / "round2" / "scores.jsonl")
    assert {"adapter_model.safetensors", "generation_config.json"} <= {
        path.name for path in (out / "shipped").iterdir()
    }


def commands(recipe: Path, folder: Path) -> list[list[str]]:
    """The arguments of every `python` that a recipe calls, none of which is run."""
    out = folder / "runs" / recipe.stem
    for name in ("annotated", "bold"):
        (out / name).mkdir(parents=True)
    # Files that a recipe takes lines of, or copies.
    for name in ("ours", "plain", "annotated/annotated", "annotated/journal", "bold/annotated"):
        (out / f"{name}.jsonl").write_text('{"id":"tips/1"}\n{"id":"story/1", "written": "<promise/>"}\n')
    log = folder / "calls"
    environment = variables(folder, f'printf "%s\\n" "$@" "" >> {shlex.quote(str(log))}')
    subprocess.run(["sh", str(recipe)], cwd=folder, env=environment, capture_output=True, check=True)
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
