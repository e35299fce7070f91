"""The import graph of the package, imports for types included: it has no circles, and points one way."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.project_files import ROOT


def modules() -> dict[str, Path]:
    """Every module of the package by its import name."""
    paths: dict[str, Path] = {}
    for folder in ("pasta_async", "pasta_async_sglang", "backends", "evals", "training"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not folder.startswith("pasta_async"):
                parts = ("pasta_async", *parts)
            elif parts[1] in ("backends", "evals", "training"):
                continue  # a link to the real folder
            paths[".".join(parts).removesuffix(".__init__")] = path
    return paths


MODULES = modules()


def imports(name: str) -> set[str]:
    """The modules of the package that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in MODULES else node.module)
    return (names & MODULES.keys()) - {name, "pasta_async"}


GRAPH = {name: imports(name) for name in MODULES}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert len(MODULES) > 60
    TopologicalSorter(GRAPH).prepare()  # raises an error that names a circle


TOP = {".".join(name.split(".")[:2]) for name in MODULES}
CORE = sorted(TOP - {f"pasta_async{part}" for part in ("", ".backends", ".evals", ".training")})


@pytest.mark.parametrize(
    ("importers", "forbidden"),
    [
        ("lang", "interpreter client protocol results"),
        ("interpreter", "client backends server cli"),
        ("backends", "client server training evals"),
        ("backends.sglang", "backends.local backends.vllm"),
        ("backends.vllm", "backends.local backends.sglang"),
        ("backends.http", "backends.local backends.sglang backends.vllm"),
        ("training", "evals"),
        ("", "training evals"),
    ],
)
def test_dependencies_point_one_way(importers: str, forbidden: str) -> None:
    above = [f"pasta_async.{package}" for package in forbidden.split()]
    below = [f"pasta_async.{importers}"] if importers else CORE
    arrows = [
        (name, other)
        for name in MODULES
        for other in GRAPH[name] | named(name)
        if inside(name, below) and inside(other, above)
    ]
    assert arrows == []


def inside(name: str, packages: list[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@cache
def named(name: str) -> set[str]:
    """Modules of the package that a module names in its strings, docstrings aside: `python -m`, say."""
    tree = ast.parse(MODULES[name].read_text())
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]
    return {found for text in texts for found in re.findall(r"pasta_async(?:\.\w+)+", text)} - {name}
