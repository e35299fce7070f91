"""The model that ships with the package keeps what its card says, on a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

import pasta_async
from pasta_async import Client
from pasta_async.training.evaluate import Form, evaluate, main, wilson
from pasta_async.training.synthetic import FAMILIES

FOLDER = Path(pasta_async.__file__).parent / "models" / "pasta-tiny"
PROMPTS = 48


def test_it_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert {"generation_config.json", "README.md"} <= set(files)
    assert sum(files.values()) < 12_000_000


@pytest.mark.parametrize("family", FAMILIES)
async def test_both_forms_answer_unseen_names(family: str) -> None:
    forms: tuple[Form, ...] = ("parallel", "baseline")
    async with Client("local:") as client:
        for form in forms:
            row, wrong = await evaluate(client, family, "names", form, PROMPTS, first_seed=10_000)
            assert wilson(row.right, PROMPTS)[1] >= 0.95, wrong
            assert row.well_formed >= PROMPTS - 1
            assert (row.promises > 0) == (family != "chain" and form == "parallel")
            if family != "chain" and form == "parallel":
                assert row.critical < 0.75 * row.generated


async def test_chunks_hidden_behind_a_sync_cost_answers() -> None:
    """Totals need what chunks computed; descriptions do not."""
    async with Client("local:") as client:
        hidden, _ = await evaluate(client, "totals", "names", "chunks hidden", 6, first_seed=10_000)
        seen, _ = await evaluate(client, "totals", "names", "parallel", 6, first_seed=10_000)
    assert wilson(hidden.right, 6)[1] < 0.8
    assert seen.right >= 5


def test_the_command_prints_a_table_and_writes_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    only = ["--families", "chain", "--splits", "names"]
    with pytest.raises(SystemExit) as left:
        main(["local:", "--prompts", "2", *only, "--json-file", str(out)])
    assert not left.value.code
    assert capsys.readouterr().out.count("| chain | names |") == 2
    assert out.read_text().count('"family"') == 2
