"""The likelihood of answers in a model's eyes, and stage 2's scores made of it."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_folders import base_folder
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta_async.errors import InvalidRequestError
from pasta_async.protocol import Message
from pasta_async.training.data.corpus import write_records
from pasta_async.training.likelihood import LanguageModel, bits_per_token
from pasta_async.training.samples import Plain, Sample, SampledPrompt, read_scores
from pasta_async.training.score import ScoreSettings, score

pytestmark = pytest.mark.usefixtures("one_thread")

MESSAGES: list[Message] = [{"role": "user", "content": "Tea or coffee?"}]
TEXTS = ["Tea is green.", "Tea is old, and so is the cup.", "", "Coffee.", "x" * 3000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_folder(tmp_path_factory.mktemp("base") / "model")


def by_transformers(folder: Path, text: str) -> float:
    """Bits a token, one text at a time."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        return float(functional.cross_entropy(logits, torch.tensor(ids))) / math.log(2)


def test_packed_texts_cost_what_they_cost_alone(folder: Path) -> None:
    for row_tokens in (16, 4096):  # a row for each, one for all
        model = LanguageModel(folder, row_tokens)
        bits = bits_per_token(model, [(MESSAGES, text) for text in TEXTS])
        assert bits[2] is None, "an empty text"
        assert bits[4] is None, "longer than the context"
        for index in (0, 1, 3):
            assert bits[index] == pytest.approx(by_transformers(folder, TEXTS[index]), abs=1e-4)


def sample(number: int, text: str, written: str = "", **more: Any) -> Sample:
    fields: dict[str, Any] = {"critical_path": 10, "finish_reason": "stop", "well_formed": True, **more}
    return Sample(number=number, seed=number, text=text, written=written or text, **fields)


def scored(folder: Path, model: Path | str, *samples: Sample, **more: Any) -> dict[int, float]:
    prompt = SampledPrompt(
        id="a",
        messages=tuple(MESSAGES),
        samples=samples,
        baseline=Plain(text="Tea is green.", tokens=20),
    )
    write_records(folder / "samples.jsonl", [prompt])
    usual = {"samples": folder / "samples.jsonl", "out": folder / "scores.jsonl", "judge": "likelihood"}
    summary = asyncio.run(score(ScoreSettings.model_validate({**usual, "judge_model": str(model), **more})))
    assert not summary["failures"]
    return {number: judged.quality for (_, number), judged in read_scores(folder / "scores.jsonl").items()}


def test_quality_is_the_probability_of_a_token_relative_to_the_baseline_less_faults(
    folder: Path, tmp_path: Path
) -> None:
    tea = '<promise topic="Tea" tokens="10"/><async>Tea is green.</async>'
    texts = ["Tea is green.", "Coffee cup!", "Tea is green.", "Tea is green.", ""]
    qualities = scored(
        tmp_path,
        folder,
        sample(0, texts[0]),
        sample(1, texts[1]),
        sample(2, texts[2], tea),
        sample(3, texts[3], tea.replace("Tea", "Cup", 1)),
        sample(4, texts[4], well_formed=False),
    )
    plain, other = (by_transformers(folder, text) for text in texts[:2])
    assert qualities[0] == qualities[2] == 1, "as likely as the plain answer, which is the same"
    assert qualities[1] == pytest.approx(min(1, 2 ** (plain - other)), abs=1e-4)
    assert qualities[3] == pytest.approx(0.75), "off its topic: the same text, another quality"
    assert qualities[4] == 0


def test_an_answer_that_says_less_is_no_faster_for_it(folder: Path, tmp_path: Path) -> None:
    short, long = sample(0, "Tea.", tokens=12), sample(1, "Tea is green. Tea is old.", tokens=40)
    scored(tmp_path, folder, short, long)
    speedups = {
        number: judged.speedup for (_, number), judged in read_scores(tmp_path / "scores.jsonl").items()
    }
    assert speedups == {0: 1.2, 1: 2.0}, "the baseline has 20 tokens, both critical paths 10"


def test_an_answer_that_the_model_cannot_hold_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        scored(tmp_path, folder, sample(0, TEXTS[4]), sample(1, "Coffee."))
