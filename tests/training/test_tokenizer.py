# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_codec import task_codec
from transformers import AutoTokenizer

from pasta_async.lang.document import TAG_TOKENS
from pasta_async.lang.views import views
from pasta_async.training.synthetic import FAMILIES, sample
from pasta_async.training.tokenizer import SPECIAL, build_tokenizer, save_tokenizer
from pasta_async.training.tokens import encode_views

CODEC = task_codec()
SPECIAL_IDS = {*range(len(SPECIAL)), *CODEC.tag_ids}


@settings(max_examples=150, deadline=None)
@given(st.text() | st.lists(st.sampled_from([*TAG_TOKENS, *SPECIAL, " ", "Kelora", "12"])).map("".join))
def test_any_text_comes_back_without_a_special_id(text: str) -> None:
    ids = CODEC.encode(text)
    assert CODEC.detokenize(ids) == text
    assert not SPECIAL_IDS.intersection(ids)


@pytest.mark.parametrize("length", [1_000, 20_000])
def test_a_long_word_costs_linear_time(length: int) -> None:
    assert CODEC.detokenize(CODEC.encode("z" * length)) == "z" * length


def test_a_name_has_the_same_tokens_wherever_it_stands() -> None:
    alone = CODEC.encode("Kelora")
    assert len(alone) == 3
    for before, after in (("Describe ", "."), ("- ", ": red"), ("(", ")"), ("and ", "")):
        ids = CODEC.encode(before + "Kelora" + after)
        assert any(ids[start : start + 3] == alone for start in range(len(ids)))


def test_decoded_views_are_the_written_form() -> None:
    for family in FAMILIES:
        document = sample(family, 3).document
        for view, encoded in zip(views(document), encode_views(CODEC, document), strict=True):
            said = "".join(part.text for part in (*view.context, *view.target))
            ids = [*encoded.context, *encoded.target]
            assert CODEC.detokenize(token for token in ids if token != CODEC.end) == said


def test_estimates_are_counted_with_the_tokenizer() -> None:
    for seed in range(20):
        for promise in sample("describe", seed, count_tokens=CODEC.count).document.promises:
            assert promise.chunk is not None
            assert promise.tokens is not None
            assert promise.tokens - 10 < CODEC.count(promise.chunk.text) <= promise.tokens


def test_the_template_writes_what_the_trainer_trains_on(tmp_path: Path) -> None:
    save_tokenizer(build_tokenizer(), tmp_path, 2048)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    for pasta in (True, False):
        messages = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Describe Kelora."},
        ]
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, pasta=pasta)
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == CODEC.prompt(messages, pasta)
    history = [*messages, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}]
    text = theirs.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|plain|>No.<|end|><|user|>Why?<|end|><|assistant|>")
    assert theirs.decode(ids, skip_special_tokens=False) == CODEC.detokenize(ids)
