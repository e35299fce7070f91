from __future__ import annotations

from dataclasses import replace

import pytest

from pasta_async.training.evaluate import Row, card, table, wilson
from pasta_async.training.synthetic import sample
from pasta_async.training.synthetic.records import parallel_chain


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


def test_a_card_says_how_the_model_was_made_and_what_it_can() -> None:
    parallel = Row("totals", "names", "parallel", 50, 49, 50, 4000, 6000, 100)
    rows = [parallel, replace(parallel, form="baseline")]
    base = [replace(row, right=50) for row in rows]
    hidden = replace(parallel, form="chunks hidden", right=1)
    trained = {"step": 6500, "tokens": 24300000}
    config = {"vocab_size": 1065, "max_position_embeddings": 2048}
    text = card(rows, base, [hidden], "round2/lambda4", trained, config)
    assert "pasta_async.training.run pasta-tiny --only evaluation/round2/lambda4" in text
    assert "6,500 updates on 24,300,000 tokens" in text
    assert "| shipped | names | parallel | 50 | 98.0% |" in text
    assert "| base alone | names | parallel | 50 | 100.0% |" in text
    assert "totals 1.50" in text
    assert "| chunks hidden | 50 | 2.0% |" in text
