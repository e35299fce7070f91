"""The likelihood of answers in a model's eyes: stage 2's scores made of it, and annotation."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Promise, parse
from pasta_async.protocol import Message
from pasta_async.training import likelihood
from pasta_async.training.data.annotate import AnnotateSettings, annotate
from pasta_async.training.data.annotate_likelihood import Costs, LikelihoodModel, choose
from pasta_async.training.data.annotate_structure import structure_marks
from pasta_async.training.data.corpus import Record, plain_record, read_records, write_records
from pasta_async.training.jobs import Journal
from pasta_async.training.likelihood import LanguageModel, LikelihoodJudge
from pasta_async.training.samples import Sample, read_scores
from pasta_async.training.score import ScoreSettings, score
from pasta_async.training.views import Mark
from tests.helpers.finetune_folders import base_folder
from tests.helpers.samples import sample, sampled_prompt

QUESTION = "Tea or coffee?"
MESSAGES: list[Message] = [{"role": "user", "content": QUESTION}]
TEXTS = ["Tea is green.", "Tea is old, and so is the cup.", "", "Coffee.", "x" * 3000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_folder(tmp_path_factory.mktemp("base") / "model")


def bits(folder: Path, context: list[int], target: list[int]) -> float:
    """Bits a token of a target behind a context, by transformers alone."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([context + target])).logits[0, len(context) - 1 : -1]
        return float(functional.cross_entropy(logits, torch.tensor(target))) / math.log(2)


def by_transformers(folder: Path, text: str) -> float:
    """Bits a token, one text at a time."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    return bits(folder, prompt, tokenizer.encode(text, add_special_tokens=False))


def test_packed_texts_cost_what_they_cost_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row_tokens in (16, 4096):  # a row for each, one for all
        monkeypatch.setattr(likelihood, "_ROW_TOKENS", row_tokens)
        with Journal(tmp_path / f"{row_tokens}.jsonl", {}) as journal:
            bits = LikelihoodJudge(LanguageModel(folder), journal).compute(MESSAGES, TEXTS)
        assert bits[2] is None, "an empty text"
        assert bits[4] is None, "longer than the context"
        for index in (0, 1, 3):
            assert bits[index] == pytest.approx(by_transformers(folder, TEXTS[index]), abs=1e-4)


def scored(
    folder: Path, model: Path | str, *samples: Sample, failures: int = 0, **more: Any
) -> dict[int, float]:
    prompt = sampled_prompt("a", QUESTION, samples, baseline="Tea is green.", tokens=20)
    write_records(folder / "samples.jsonl", [prompt])
    usual = {"samples": folder / "samples.jsonl", "out": folder / "scores.jsonl", "judge": "likelihood"}
    summary = asyncio.run(score(ScoreSettings.model_validate({**usual, "judge_model": str(model), **more})))
    assert sum(summary["failures"].values()) == failures
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
        sample(2, texts[2], written=tea),
        sample(3, texts[3], written=tea.replace("Tea", "Cup", 1)),
        sample(4, texts[4], well_formed=False),
    )
    plain, other = (by_transformers(folder, text) for text in texts[:2])
    assert qualities[0] == qualities[2] == 1, "as likely as the plain answer, which is the same"
    assert qualities[1] == pytest.approx(min(1, 2 ** (plain - other)), abs=1e-4)
    assert qualities[3] == pytest.approx(0.75), "off its topic: the same text, another quality"
    assert qualities[4] == 0


def test_an_answer_that_says_less_is_no_faster_for_it(folder: Path, tmp_path: Path) -> None:
    short = sample(0, "Tea.", tokens=25, text_tokens=11)  # half of it are tags
    long = sample(1, "Tea is green. Tea is old.", tokens=40, text_tokens=39)
    scored(tmp_path, folder, short, long)
    speedups = {
        number: judged.speedup for (_, number), judged in read_scores(tmp_path / "scores.jsonl").items()
    }
    assert speedups == {0: 1.2, 1: 2.0}, "the baseline has 20 tokens, both critical paths 10"


def test_an_answer_that_the_model_cannot_hold_is_left_out(folder: Path, tmp_path: Path) -> None:
    samples = (sample(0, TEXTS[4]), sample(1, "Coffee."))
    assert [*scored(tmp_path, folder, *samples, failures=1)] == [1]


# Annotation -----------------------------------------------------------------------------------------------


ITEMS = ["Tea is green and old.", "Coffee is brown, and the cup is small.", "Water has no taste at all."]
ANSWERS = [
    "Both:\n\n1. {}\n2. {}\n3. {}\n\nSo it was water.".format(*ITEMS),
    "Here it is.\n\n{}\n\n{}\n\nIn the end, both.".format(*ITEMS[:2]),
    "- {}\n- {}\n- {}\n".format(*ITEMS),
    "One outcome.",
]
RECORDS = [plain_record([{"role": "user", "content": "Tell me."}], answer) for answer in ANSWERS]


def settings(folder: Path, model: Path, out: str = "out", **more: Any) -> AnnotateSettings:
    write_records(folder / "data.jsonl", RECORDS)
    usual = {"by": "likelihood", "model": str(model), "least": 4}
    data = {"data": str(folder / "data.jsonl"), "out": folder / out}
    return AnnotateSettings.model_validate({**usual, **data, **more})


def annotated(folder: Path, out: str = "out") -> list[Record]:
    return list(read_records(folder / out / "annotated.jsonl"))


def candidates(text: str) -> list[Mark]:
    return [mark for mark in structure_marks(text, least=4) if isinstance(mark.tag, Promise)]


def test_a_model_without_tags_sees_the_text_without_the_siblings(folder: Path) -> None:
    model, record = LikelihoodModel(folder), RECORDS[0]
    (costs,) = model.costs([(record, candidates(ANSWERS[0]))])
    assert costs
    ids, prompt = model.encode(ANSWERS[0]), model.encode_chat(record.messages, {})
    first, marker, chunk = map(model.encode, ("Both:", "\n3. ", "Water has no taste at all."))
    before = model.encode(ANSWERS[0].split("Water")[0])
    assert ids[: len(before) + len(chunk)] == before + chunk
    alone = bits(folder, prompt + first + marker, chunk)
    whole = bits(folder, prompt + before, chunk)
    assert costs.chunks[0][2] == pytest.approx(alone - whole, abs=2e-4)
    tail = model.encode("\n\nSo it was water.")
    expected = bits(folder, prompt + first, tail) - bits(folder, prompt + ids[: -len(tail)], tail)
    assert costs.gaps[0][3] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("tau", [0.0, 0.05, math.inf])
def test_the_text_stays_and_tags_are_well_formed(tau: float, folder: Path, tmp_path: Path) -> None:
    summary = annotate(settings(tmp_path, folder, tau=tau, sync_tau=tau))
    records = annotated(tmp_path)
    assert [record.document.text for record in records] == ANSWERS
    assert all(not parse(record.written).diagnostics for record in records)
    assert {record.annotator for record in records} == {"likelihood:model"}
    assert (summary["accepted"], summary["measured"], summary["unmeasured"]) == (4, 3, 0)


def test_likelihood_can_be_measured_in_bfloat16(folder: Path) -> None:
    texts = [("tea", [1, 2, 3], [4, 5, 6])]
    half, whole = (LikelihoodModel(folder, dtype).bits(texts)["tea"] for dtype in ("bfloat16", "float32"))
    assert half != whole
    assert half == pytest.approx(whole, rel=0.02)


def test_rounds_end_where_something_becomes_dear() -> None:
    marks = candidates(ANSWERS[0])
    free = Costs([[0.0] * (3 - j) for j in range(3)], [[0.0] * (4 - j) for j in range(4)])
    promises = marks
    assert choose(marks, free, [0.0] * len(marks), 0.0) == promises
    dear = Costs([[0.0, 0.3, 0.0], *free.chunks[1:]], free.gaps)
    assert [mark.start for mark in choose(marks, dear, [0.0] * len(marks), 0.0)] == [
        mark.start for mark in marks[1:]
    ]
    assert choose(marks, dear, [0.3] * len(marks), 0.0) == promises
    tail = Costs(free.chunks, [[0.0, 0.0, 0.0, 0.4], *free.gaps[1:]])
    *first, sync = choose(marks, tail, [0.0] * len(marks), 0.3)
    assert (first, sync.start, sync.end) == (promises, marks[-1].end, marks[-1].end)
    assert choose(marks, tail, [0.0] * len(marks), 0.4) == promises
    chain = Costs([[0.0, 1.0, 1.0], [0.0, 1.0], [0.0]], free.gaps)
    assert choose(marks, chain, [0.5] * len(marks), 0.5) == []


def test_an_interrupted_run_goes_on_to_the_same_file(folder: Path, tmp_path: Path) -> None:
    annotate(settings(tmp_path, folder, tau=0.01))
    whole = (tmp_path / "out" / "annotated.jsonl").read_bytes()
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2]) + lines[2][:20])
    summary = annotate(settings(tmp_path, folder, tau=0.01))
    assert (summary["resumed"], summary["measured"]) == (1, 2)
    assert (tmp_path / "out" / "annotated.jsonl").read_bytes() == whole
    again = annotate(settings(tmp_path, folder, tau=0.5))  # another tau needs no model
    assert (again["resumed"], again["measured"]) == (3, 0)
    other = base_folder(tmp_path / "other", "qwen2")
    for changed in (settings(tmp_path, other), settings(tmp_path, folder, dtype="bfloat16")):
        with pytest.raises(InvalidRequestError):
            annotate(changed)


def test_an_answer_that_the_vocabulary_cannot_write_is_not_measured(tmp_path: Path) -> None:
    file = base_folder(tmp_path / "model") / "tokenizer.json"
    raw = json.loads(file.read_text("utf-8"))
    del raw["model"]["vocab"]["\u00d0"]  # the first byte of many Cyrillic letters
    file.write_text(json.dumps(raw))
    answer = ANSWERS[0].replace("Both", "\u041e\u0431\u0430")
    record = plain_record([{"role": "user", "content": "Tell me."}], answer)
    assert LikelihoodModel(tmp_path / "model").costs([(record, candidates(answer))]) == [None]


def test_an_answer_that_the_model_cannot_hold_stays_plain(tmp_path: Path) -> None:
    model = base_folder(tmp_path / "model", max_position_embeddings=90)
    summary = annotate(settings(tmp_path, model, tau=math.inf))
    assert summary["unmeasured"] > 0
    assert [record.document.text for record in annotated(tmp_path)] == ANSWERS
