"""pasta-tiny answers its task in both forms; the folders of models that ship are small."""

from __future__ import annotations

import asyncio

import pytest

from pasta_async import Client
from pasta_async.backends.local.pull import BaseSource, find_model, shipped_models
from tests.pasta_tiny import FAMILIES, LOCAL_TINY, examples


@pytest.mark.parametrize("name", shipped_models())
def test_a_model_that_ships_is_small_and_names_its_base(name: str) -> None:
    folder = find_model(name)
    assert BaseSource.of(folder) is not None
    assert (folder / "README.md").is_file()
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert not any(name.endswith((".bin", ".gguf", "tokenizer.json")) for name in files)
    assert sum(files.values()) < 20_000_000


@pytest.mark.parametrize("family", FAMILIES)
async def test_both_forms_answer_unseen_names(family: str) -> None:
    family_examples = examples(family)
    async with Client(LOCAL_TINY) as client:
        for baseline in (False, True):
            answering = (
                client.generate(example.prompt, baseline=baseline, parallel="always")
                for example in family_examples
            )
            answers = await asyncio.gather(*answering)
            facts = [example.document.text for example in family_examples]
            right = sum(answer.text == text for answer, text in zip(answers, facts, strict=True))
            assert right >= len(family_examples) - 2
            promised = any(answer.document.promises for answer in answers)
            assert promised == (family != "chain" and not baseline)


def test_the_names_are_the_folders() -> None:
    folders = find_model("pasta-smol").parent.glob("*/base.json")
    assert sorted(folder.parent.name for folder in folders) == shipped_models()
