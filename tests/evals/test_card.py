from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pasta_async.evals.answers import Answer
from pasta_async.evals.card import card
from pasta_async.evals.documents import Prompt
from pasta_async.evals.frontier import outcome
from pasta_async.training.synthetic import sample, score
from pasta_async.training.synthetic.records import parallel_chain

if TYPE_CHECKING:
    from pathlib import Path


def test_a_chain_in_parallel_has_the_same_text() -> None:
    for seed in range(10):
        example = sample("chain", seed)
        document = parallel_chain(example, lambda text: len(text.split()))
        assert document.text == example.document.text
        assert len(document.promises) == len(example.names) + 1


def result(right: int, *splits: str) -> dict[str, Any]:
    """Fifty answers to each of `splits`, so many of them right."""
    prompts, parallel, plain = list[Prompt](), list[Answer](), list[Answer]()
    for split in splits:
        for number in range(50):
            example = sample("totals", number, "names" if split == "names" else "templates")
            place, text = len(prompts), example.document.text if number < right else "I do not know."
            prompts.append(Prompt(example.prompt, "totals", example))
            parallel.append(Answer(place, "parallel", tokens=120, critical_path=80, text=text))
            plain.append(Answer(place, "baseline", tokens=120, critical_path=120, text=text))
    grades = [
        float(prompt.example is not None and score(prompt.example, one.text))
        for prompt, one in zip(prompts, parallel, strict=True)
    ]
    return outcome(prompts, parallel, grades, (plain, grades))


def test_a_card_says_how_the_model_was_made_and_what_it_can(tmp_path: Path) -> None:
    files = {
        "base/metrics.jsonl": [{"tokens": 3000.0}] * 1500,
        "round2/lambda4/model/config.json": [{"vocab_size": 1065, "max_position_embeddings": 2048}],
    }
    for name, lines in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    results = {
        "shipped": result(49, "names", "templates"),
        "base alone": result(50, "names", "templates"),
        "chunks hidden": result(1, "names"),
        "chain in parallel": result(0, "names"),
    }
    text = card(tmp_path, "round2/lambda4", results)
    assert "pasta_async.training.run pasta-tiny --only evaluation/round2/lambda4" in text
    assert "(1,500 updates on 4,500,000 tokens" in text
    assert "1,065 tokens, a context of 2,048" in text
    assert "| shipped | unseen names | parallel | 50 | 98.0% | 89.5% to 99.6% | 100.0% |" in text
    assert "| base alone | both | baseline | 100 | 100.0% |" in text
    assert "totals 1.50." in text
    assert (
        "| totals | unseen templates | parallel | 50 | 98.0% | 89.5% to 99.6% | 100.0% | 120.0 | 80.0 |"
        in text
    )
    assert "| totals | unseen names | chunks hidden | 50 | 2.0% |" in text
