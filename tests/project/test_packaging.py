"""The wheel and the source distribution: both are built, and their files looked at."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.helpers.project_files import ROOT, project_files

LINKED = ("backends", "training", "evals")
WHEEL_LIMIT = 30_000_000
INFO = "pasta_async-0.1.0.dist-info"


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from the sdist."""
    base = tmp_path_factory.mktemp("packaging")
    tree = base / "tree"
    for name in project_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--no-isolation", ".", "--outdir", base / "dist", cwd=tree)
    return base / "dist"


def the(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_the_wheel_holds_what_is_needed_and_nothing_else(built: Path) -> None:
    wheel = the(built, "*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {entry.filename for entry in archive.infolist() if not entry.is_dir()}
        plugins = archive.read(f"{INFO}/entry_points.txt").decode()
        assert not any(stat.S_ISLNK(entry.external_attr >> 16) for entry in archive.infolist())
    files = project_files()
    assert {name.split("/")[0] for name in names} == {"pasta_async", "pasta_async_sglang", INFO}
    modules = [name for name in files if name.endswith(".py")]
    package_modules = {name for name in modules if name.startswith(("pasta_async/", "pasta_async_sglang/"))}
    linked_modules = {f"pasta_async/{name}" for name in modules if name.startswith(LINKED)}
    assert package_modules and linked_modules
    assert {name for name in names if name.endswith(".py")} == package_modules | linked_modules
    shipped = ("pasta_async/models/", "pasta_async/server/playground/", "pasta_async/trace/")
    assert {name for name in files if name.startswith(shipped)} <= names
    assert "pasta_async/py.typed" in names
    assert wheel.stat().st_size <= WHEEL_LIMIT
    assert "[sglang.srt.plugins]\npasta_async = pasta_async_sglang:register" in plugins


def test_the_sdist_has_no_second_copy_of_the_code(built: Path) -> None:
    with tarfile.open(the(built, "*.tar.gz")) as archive:
        names = {member.name.split("/", 1)[-1] for member in archive.getmembers()}
        assert not any(member.issym() for member in archive.getmembers())
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"} <= names
    assert not any(name.startswith(LINKED) for name in names)


def test_an_installed_wheel_imports_by_itself(built: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    with zipfile.ZipFile(the(built, "*.whl")) as archive:
        archive.extractall(target)
    program = "import pasta_async, pasta_async.backends as b; print(pasta_async.__file__); print(b.__file__)"
    env = {"PYTHONPATH": str(target), "PATH": ""}
    for line in run(sys.executable, "-c", program, cwd=tmp_path, env=env).splitlines():
        assert Path(line).is_relative_to(target)
