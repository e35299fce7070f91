"""The model that ships with the package keeps what its card says, on a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import pasta_async
from pasta_async.training.evaluate import evaluate, load, wilson
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from pasta_async.training.tokenizer import Codec

FOLDER = Path(pasta_async.__file__).parent / "models" / "pasta-tiny"
PROMPTS = 48


@pytest.fixture(scope="module")
def model() -> tuple[LlamaForCausalLM, Codec]:
    torch.set_num_threads(1)
    return load(FOLDER)


def test_it_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert {"generation_config.json", "README.md"} <= set(files)
    assert sum(files.values()) < 12_000_000


@pytest.mark.parametrize("family", FAMILIES)
def test_both_forms_answer_unseen_names(family: str, model: tuple[LlamaForCausalLM, Codec]) -> None:
    for form in ("parallel", "baseline"):
        row, answers = evaluate(*model, family, "names", form, PROMPTS, first_seed=10_000)
        wrong = [(example.prompt, text) for example, text, right in answers if not right]
        assert wilson(row.right, PROMPTS)[1] >= 0.95, wrong
        assert row.well_formed >= PROMPTS - 1
        assert (row.promises > 0) == (family != "chain" and form == "parallel")
        if family != "chain" and form == "parallel":
            assert row.critical < 0.75 * row.generated


def test_breaking_the_rules_costs_answers(model: tuple[LlamaForCausalLM, Codec]) -> None:
    hidden, _ = evaluate(*model, "totals", "names", "chunks hidden", 6, first_seed=10_000)
    forced, _ = evaluate(*model, "chain", "names", "forced parallel", 6, first_seed=10_000)
    assert wilson(hidden.right, 6)[1] < 0.8
    assert wilson(forced.right, 6)[1] < 0.8
