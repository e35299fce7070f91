"""The import graph of the package, imports for types included: no two modules import each other, and
dependencies point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, Path]:
    """Every module of the package by its import name."""
    found: dict[str, Path] = {}
    for folder in ("pasta_async", "pasta_async_sglang", "backends", "evals", "training"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not folder.startswith("pasta_async"):
                parts = ("pasta_async", *parts)
            elif parts[1] in ("backends", "evals", "training"):
                continue  # a link to the real folder
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """The modules of the package that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
    return (found & MODULES.keys()) - {name, "pasta_async"}


GRAPH = {name: imports(name) for name in MODULES}


def test_no_two_modules_import_each_other() -> None:
    assert len(MODULES) > 100
    assert [
        (one, other) for one in GRAPH for other in GRAPH[one] if one < other and one in GRAPH[other]
    ] == []


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        (
            "lang",
            ("pasta_async.interpreter", "pasta_async.client", "pasta_async.protocol", "pasta_async.results"),
        ),
        (
            "interpreter",
            ("pasta_async.client", "pasta_async.backends", "pasta_async.server", "pasta_async.cli"),
        ),
        (
            "backends",
            ("pasta_async.client", "pasta_async.server", "pasta_async.training", "pasta_async.evals"),
        ),
        ("training", ("pasta_async.evals",)),
    ],
)
def test_dependencies_point_one_way(folder: str, forbidden: tuple[str, ...]) -> None:
    prefix = f"pasta_async.{folder}."
    wrong = {
        (name, other)
        for name, others in GRAPH.items()
        for other in others
        if f"{name}.".startswith(prefix) and other.startswith(forbidden)
    }
    assert wrong == set()
