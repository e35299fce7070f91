"""The folders of models that ship are small, and named as the models are."""

from __future__ import annotations

import pytest

from pasta_async.backends.local.pull import BaseSource, find_model, shipped_models


@pytest.mark.parametrize("name", shipped_models())
def test_a_model_that_ships_is_small_and_names_its_base(name: str) -> None:
    folder = find_model(name)
    assert BaseSource.of(folder) is not None
    assert (folder / "README.md").is_file()
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert not any(name.endswith((".bin", ".gguf", "tokenizer.json")) for name in files)
    assert sum(files.values()) < 20_000_000


def test_the_names_are_the_folders() -> None:
    folders = find_model("pasta-smol").parent.glob("*/base.json")
    assert sorted(folder.parent.name for folder in folders) == shipped_models()
