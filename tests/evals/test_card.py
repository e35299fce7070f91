from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pasta_async.evals.card import card, table
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


def answers(right: int, count: int, **labels: Any) -> list[dict[str, Any]]:
    usual = {"family": "totals", "held out": "names", "form": "parallel", "well-formed": True}
    return [
        {**usual, "tokens": 120, "critical path": 80, "right": number < right, **labels}
        for number in range(count)
    ]


def test_a_row_has_shares_with_wilsons_interval_and_mean_lengths() -> None:
    shown = table(answers(95, 100), ("family", "form")).splitlines()
    assert shown[-1] == "| totals | parallel | 100 | 95.0% | 88.8% to 97.8% | 100.0% | 120.0 | 80.0 |"


def test_a_card_says_how_the_model_was_made_and_what_it_can(tmp_path: Path) -> None:
    files = {
        "base/metrics.jsonl": {"step": 6500, "tokens": 24300000},
        "round2/lambda4/model/config.json": {"vocab_size": 1065, "max_position_embeddings": 2048},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(json.dumps(content))
    plain = {"form": "baseline", "critical path": 120}
    found = [
        *answers(49, 50, model="shipped"),
        *answers(49, 50, model="shipped", **plain),
        *answers(50, 50, model="base alone"),
    ]
    text = card(tmp_path, "round2/lambda4", found, answers(1, 50, form="chunks hidden"))
    assert "pasta_async.training.run pasta-tiny --only evaluation/round2/lambda4" in text
    assert "6,500 updates on 24,300,000 tokens" in text
    assert "| shipped | names | parallel | 50 | 98.0% |" in text
    assert "| base alone | both | parallel | 50 | 100.0% |" in text
    assert "totals 1.50" in text
    assert "| chunks hidden | 50 | 2.0% |" in text
