from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from pasta_async.training.card import main as write_card
from pasta_async.training.evaluate import Row, table, wilson
from pasta_async.training.synthetic import sample
from pasta_async.training.synthetic.records import parallel_chain

if TYPE_CHECKING:
    from pathlib import Path


def test_a_chain_in_parallel_has_the_same_text() -> None:
    for seed in range(10):
        example = sample("chain", seed)
        document = parallel_chain(example, lambda text: len(text.split()))
        assert document.text == example.document.text
        assert len(document.promises) == len(example.names) + 1


def test_intervals_are_those_of_wilson() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(95, 100) == pytest.approx((0.8882, 0.9785), abs=1e-4)
    row = Row("fair", "names", "parallel", 100, 95, 100, 6000, 12000, 300)
    assert "| fair | names | parallel | 100 | 95.0% | 88.8% to 97.8% | 100.0% | 120.0 | 60.0 |" in table(
        [row]
    )


def test_a_card_says_how_the_model_was_made_and_what_it_can(tmp_path: Path) -> None:
    model = tmp_path / "round2" / "lambda4" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"vocab_size": 1065, "max_position_embeddings": 2048}')
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "metrics.jsonl").write_text(
        '{"step": 1, "tokens": 9}\n{"step": 6500, "tokens": 24300000}\n'
    )
    parallel = Row("totals", "names", "parallel", 50, 49, 50, 4000, 6000, 100)
    rows = [parallel, replace(parallel, form="baseline")]
    results, base, ablations = (tmp_path / name for name in ("results.json", "base.json", "ablations.md"))
    results.write_text(json.dumps([asdict(row) for row in rows]))
    base.write_text(json.dumps([asdict(replace(row, right=50)) for row in rows]))
    ablations.write_text("| chunks hidden | 0.8% |")
    more = ["--base-results", str(base), "--ablations", str(ablations)]
    with pytest.raises(SystemExit) as left:
        write_card([str(results), str(tmp_path), "round2/lambda4", *more])
    assert not left.value.code
    card = (model / "README.md").read_text()
    assert "pasta_async.training.run pasta-tiny --only evaluation/round2/lambda4" in card
    assert "6,500 updates on 24,300,000 tokens" in card
    assert "| shipped | names | parallel | 50 | 98.0% |" in card
    assert "| base alone | names | parallel | 50 | 100.0% |" in card
    assert "totals 1.50" in card
    assert "| chunks hidden | 0.8% |" in card
