"""The model that ships with the package keeps what its card says, on a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pasta_async
from pasta_async.backends import open_backend
from pasta_async.evals.answers import FORMS
from pasta_async.evals.card import HiddenChunks, answered
from pasta_async.evals.documents import Prompt
from pasta_async.evals.statistics import share
from pasta_async.training.synthetic import FAMILIES, sample

if TYPE_CHECKING:
    from pasta_async import Backend
    from pasta_async.evals.answers import Form
    from pasta_async.evals.card import Rows

FOLDER = Path(pasta_async.__file__).parent / "models" / "pasta-tiny"
PROMPTS = 48


def test_it_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert {"generation_config.json", "README.md"} <= set(files)
    assert sum(files.values()) < 12_000_000


async def asked(backend: Backend, family: str, form: Form, count: int, folder: Path) -> Rows:
    examples = [sample(family, seed, "names") for seed in range(10_000, 10_000 + count)]
    prompts = [Prompt(example.prompt, family, example) for example in examples]
    return await answered(backend, prompts, folder / f"{form}.jsonl", forms=[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_both_forms_answer_unseen_names(family: str, form: Form, tmp_path: Path) -> None:
    rows = await asked(open_backend("local:"), family, form, PROMPTS, tmp_path)
    assert share([row["right"] for row in rows])["high"] >= 95
    assert sum(row["well-formed"] for row in rows) >= PROMPTS - 1
    parallel = family != "chain" and form == "parallel"
    assert any(row["promises"] for row in rows) == parallel
    if parallel:
        assert sum(row["critical path"] for row in rows) < 0.75 * sum(row["tokens"] for row in rows)


async def test_chunks_hidden_behind_a_sync_cost_answers(tmp_path: Path) -> None:
    """Totals need what chunks computed; descriptions do not."""
    backends = {"hidden": HiddenChunks(open_backend("local:")), "seen": open_backend("local:")}
    right = {
        name: [row["right"] for row in await asked(backend, "totals", "parallel", 6, tmp_path / name)]
        for name, backend in backends.items()
    }
    assert share(right["hidden"])["high"] < 80
    assert sum(right["seen"]) >= 5
