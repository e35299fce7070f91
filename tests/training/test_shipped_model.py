"""pasta-tiny keeps what its card says, on a sample; pasta-smol's folder is small."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta_async import Backend, Client, Sampling
from pasta_async.backends import open_backend
from pasta_async.backends.local.pull import BaseSource, find_model
from pasta_async.evals.answers import FORMS, Answer, Form, Prompt, answer_all
from pasta_async.evals.statistics import share
from pasta_async.jobs import Journal
from pasta_async.training.synthetic import FAMILIES, sample, score
from tests.pasta_tiny import LOCAL_TINY, PASTA_TINY

FOLDER = PASTA_TINY
PROMPTS = 48


def test_it_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert {"generation_config.json", "README.md"} <= set(files)
    assert sum(files.values()) < 12_000_000


def test_the_adapter_that_ships_is_small_and_names_its_base() -> None:
    folder = find_model("pasta-smol")
    assert BaseSource.of(folder) is not None
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert not any(name.endswith((".bin", ".gguf", "tokenizer.json")) for name in files)
    assert sum(files.values()) < 12_000_000


async def asked(
    backend: Backend, family: str, form: Form, count: int, folder: Path
) -> tuple[list[Answer], list[bool]]:
    """Answers to unseen names, and which of them are right."""
    examples = [sample(family, seed, "names") for seed in range(10_000, 10_000 + count)]
    prompts = [Prompt(text=example.prompt, source=family) for example in examples]
    async with Client(backend) as client:
        with Journal(folder / "answers.jsonl", {}) as journal:
            sampling = Sampling(max_tokens=1024)
            found = await answer_all(client, prompts, journal, sampling=sampling, together=64, forms=[form])
    return found, [score(example, one.text) for example, one in zip(examples, found, strict=True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_both_forms_answer_unseen_names(family: str, form: Form, tmp_path: Path) -> None:
    answers, right = await asked(open_backend(LOCAL_TINY), family, form, PROMPTS, tmp_path)
    assert (share(right)["high"] or 0) >= 95
    assert sum(one.well_formed for one in answers) >= PROMPTS - 1
    parallel = family != "chain" and form == "parallel"
    assert any(one.promises for one in answers) == parallel
    if parallel:
        assert sum(one.critical_path for one in answers) < 0.75 * sum(one.tokens for one in answers)
