# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pasta_async.lang.document import TAG_TOKENS
from pasta_async.lang.views import views
from pasta_async.training import answers
from pasta_async.training.answers import decode_pasta, decode_plain
from pasta_async.training.card import main as write_card
from pasta_async.training.decoding import greedy
from pasta_async.training.evaluate import Row, table, visible_text, wilson
from pasta_async.training.synthetic import FAMILIES, sample, score
from pasta_async.training.synthetic.records import parallel_chain
from pasta_async.training.tokenizer import Codec, build_tokenizer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pasta_async.training.evaluate import Form

CODEC = Codec(build_tokenizer())
NO_MODEL: Any = None


def recite(monkeypatch: pytest.MonkeyPatch, written: dict[tuple[int, ...], list[int]]) -> None:
    """Put a model in place that knows what to write behind each context, and no other context."""

    def oracle(
        model: object, contexts: Sequence[Sequence[int]], stops: Collection[int], limit: int
    ) -> list[list[int]]:
        return [written[tuple(context)] for context in contexts]

    monkeypatch.setattr(answers, "greedy", oracle)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_asked_of_the_model_are_the_views(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [sample(family, seed, "names", CODEC.count) for seed in range(4)]
    written: dict[tuple[int, ...], list[int]] = {}
    for example in examples:
        prompt = CODEC.prompt(example.prompt, pasta=True)
        for view in views(example.document):
            target = CODEC.segments(view.target) + [CODEC.end] * view.ends_answer
            written[(*prompt, *CODEC.segments(view.context))] = target
    recite(monkeypatch, written)
    for example, answer in zip(
        examples, decode_pasta(NO_MODEL, CODEC, [example.prompt for example in examples]), strict=True
    ):
        assert answer.well_formed
        assert score(example, visible_text(CODEC, answer))
        assert CODEC.decode(answer.written) == example.document.format()
        assert answer.chunks == len(example.document.promises)
        assert answer.generated == sum(
            len(CODEC.segments(view.target)) + view.ends_answer for view in views(example.document)
        )
        if example.document.promises:
            assert answer.critical < answer.generated


def test_the_baseline_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    example = sample("totals", 1)
    prompt = tuple(CODEC.prompt(example.prompt, pasta=False))
    recite(monkeypatch, {prompt: [*CODEC.encode(example.document.text), CODEC.end]})
    (answer,) = decode_plain(NO_MODEL, CODEC, [example.prompt])
    assert answer.well_formed
    assert visible_text(CODEC, answer) == example.document.text


@pytest.mark.parametrize(
    "main",
    [
        [TAG_TOKENS[0], "x", TAG_TOKENS[2]],  # a promise without tokens
        [TAG_TOKENS[0], "x", TAG_TOKENS[1], "7", TAG_TOKENS[2]],  # not a multiple of ten
        [TAG_TOKENS[0], "a b c d", TAG_TOKENS[1], "10", TAG_TOKENS[2]],  # four words
        [TAG_TOKENS[3], "x"],  # an opening tag that nobody forced
    ],
)
def test_malformed_answers_are_counted_as_such(main: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[int] = []
    for part in main:
        output += [CODEC.special(part)] if part in TAG_TOKENS else CODEC.encode(part)
    recite(monkeypatch, {tuple(CODEC.prompt("Hello", pasta=True)): [*output, CODEC.end]})
    (answer,) = decode_pasta(NO_MODEL, CODEC, ["Hello"])
    assert not answer.well_formed


def test_batched_decoding_is_that_of_transformers() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48
    )
    model: Any = LlamaForCausalLM(config).eval()
    contexts = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [20, 21]]
    stops = set(range(40, 60))
    for context, got in zip(contexts, greedy(model, contexts, stops, limit=12, batch=3), strict=True):
        expected: Any = model.generate(
            torch.tensor([context]),
            attention_mask=torch.ones(1, len(context), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=sorted(stops),
            pad_token_id=0,
        )
        assert got == expected[0, len(context) :].tolist()


def test_a_chain_in_parallel_has_the_same_text() -> None:
    for seed in range(10):
        example = sample("chain", seed)
        document = parallel_chain(example, CODEC.count)
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
    forms: tuple[Form, ...] = ("parallel", "baseline")
    rows = [Row("totals", "names", form, 50, 49, 50, 4000, 6000, 100) for form in forms]
    (tmp_path / "results.json").write_text(json.dumps([asdict(row) for row in rows]))
    (tmp_path / "ablations.md").write_text("| chunks hidden | 0.8% |")
    write_card(
        [
            str(tmp_path / "results.json"),
            str(tmp_path),
            "round2/lambda4",
            "--ablations",
            str(tmp_path / "ablations.md"),
        ]
    )
    card = (model / "README.md").read_text()
    assert "pasta_async.training.run pasta-tiny --only evaluation/round2/lambda4" in card
    assert "6,500 updates on 24,300,000 tokens" in card
    assert "| names | parallel | 50 | 98.0% |" in card
    assert "totals 1.50" in card
    assert "| chunks hidden | 0.8% |" in card
