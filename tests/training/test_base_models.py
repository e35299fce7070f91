# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.lang import TAG_TOKENS, parse
from pasta_async.lang.views import views
from pasta_async.tokenizer import Tokenizer
from pasta_async.training.model import MARK, ModelMaker, write_tokenizer
from pasta_async.training.views import Codec, encode_views
from tests.helpers.finetune_folders import ANSWERS, base_folder, tagged
from tests.helpers.local_models import TEMPLATE

CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Both <sync/> <|im_end|> wars?"},
]


@pytest.mark.parametrize("tied", [False, True])
def test_tags_start_as_long_as_other_rows_and_apart_from_each_other(tied: bool, tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base", tie_word_embeddings=tied)
    old: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = old.config.vocab_size
    base, codec = tagged(folder, tmp_path / "tokenizer")
    assert codec.tag_ids == tuple(range(rows, rows + 6))
    new = base.make()
    assert new.config.vocab_size % 64 == 0
    assert new.config.vocab_size == new.get_input_embeddings().weight.shape[0] >= rows + 6
    for before, after in (
        (old.get_input_embeddings().weight, new.get_input_embeddings().weight),
        (old.get_output_embeddings().weight, new.get_output_embeddings().weight),
    ):
        assert torch.equal(after[:rows], before)
        tags = after[list(codec.tag_ids)]
        torch.testing.assert_close(tags.norm(dim=1), before.norm(dim=1).mean().expand(6), rtol=0.15, atol=0)
        directions = torch.nn.functional.normalize(tags, dim=1)
        assert (directions @ directions.T - torch.eye(6)).max() < 0.75
        torch.testing.assert_close(after[-1], before.mean(0))
    again = base.make().get_input_embeddings().weight
    assert torch.equal(again, new.get_input_embeddings().weight)
    assert (new.get_input_embeddings().weight is new.get_output_embeddings().weight) == tied


def test_a_tag_that_is_a_word_of_the_vocabulary_keeps_its_row(tmp_path: Path) -> None:
    """SmolLM2's vocabulary has `"/>`, for instance."""
    folder = base_folder(tmp_path / "base", vocab_size=448)
    file = json.loads((folder / "tokenizer.json").read_text())
    tag_id = 1 + max(entry["id"] for entry in file["added_tokens"])
    file["added_tokens"].append({**file["added_tokens"][-1], "id": tag_id, "content": TAG_TOKENS[2]})
    (folder / "tokenizer.json").write_text(json.dumps(file))
    old: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    base, codec = tagged(folder, tmp_path / "tokenizer")
    assert codec.tag_ids[2] == tag_id
    new = base.make().model.embed_tokens.weight
    changed = (new[:448] != old.model.embed_tokens.weight).any(-1).nonzero().flatten()
    assert changed.tolist() == [tag for tag in codec.tag_ids if tag != tag_id]


def test_a_model_that_knows_the_tags_is_left_as_it_is(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base", tags=True)
    base, codec = tagged(folder, tmp_path / "tokenizer")
    tags = Tokenizer.from_folder(folder).tags
    assert tags is not None and codec.tag_ids == tuple(tags)
    old: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(base.make().model.embed_tokens.weight, old.model.embed_tokens.weight)


def solid(text: str) -> str:
    return "".join(text.split())


def test_what_is_encoded_is_the_written_form_and_user_text_is_data(tmp_path: Path) -> None:
    _, codec = tagged(base_folder(tmp_path / "base"), tmp_path / "tokenizer")
    for written in ANSWERS:
        document = parse(written)
        for view, encoded in zip(views(document), encode_views(codec, document), strict=True):
            parts = (*view.context, *view.target)
            ids = [*encoded.context, *encoded.target[: -1 if view.ends_answer else None]]
            # Tags may have moved over the space beside them.
            assert solid(codec.decode(ids)) == solid("".join(part.text for part in parts))
            assert sum(token in codec.tag_ids for token in ids) == sum(part.is_tag for part in parts)
    prompt = codec.prompt(CHAT)
    assert set(codec.tag_ids).isdisjoint(prompt)
    assert prompt.count(codec.end) == 2  # one for each message, none for what the user typed
    assert codec.decode([codec.end]) == "<|im_end|>"


def test_transformers_reads_the_tokenizer_as_we_do(tmp_path: Path) -> None:
    _, codec = tagged(base_folder(tmp_path / "base"), tmp_path / "tokenizer")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    chat = [{"role": "user", "content": "Both wars?"}]
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True).input_ids == codec.prompt(chat)
    assert tokenizer.encode("".join(TAG_TOKENS)) == list(codec.tag_ids)
    assert tokenizer.decode([*codec.encode("one"), *codec.tag_ids], skip_special_tokens=True) == "one"


def test_a_switch_for_the_baseline(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base")
    for number, end in enumerate(
        ("", "\n", " \n\n", "\n  ", "\r\n", "{% if add_generation_prompt %}\n {% endif %}\n")
    ):
        (folder / "chat_template.jinja").write_bytes((TEMPLATE + end).encode())
        out = tmp_path / f"both{number}"
        _, codec = tagged(folder, out, both=True)
        plain = codec.prompt(CHAT, pasta=False)
        assert plain == Tokenizer.from_folder(folder).encode_chat(CHAT, {})
        assert codec.decode(codec.prompt(CHAT)) == codec.decode(plain) + MARK
        ours, theirs = (Tokenizer.from_folder(path) for path in (out, folder))
        turn = {"add_generation_prompt": False}
        assert ours.encode_chat(CHAT, turn) == theirs.encode_chat(CHAT, turn)
    own_template = TEMPLATE + "{% if pasta is defined and not pasta %}without{% endif %}"
    _, codec = tagged(folder, tmp_path / "own", template=own_template, both=True)
    assert (tmp_path / "own" / "chat_template.jinja").read_text() == own_template
    assert codec.prompt(CHAT, pasta=False) == [*codec.prompt(CHAT), *codec.encode("without")]


def test_other_models_are_refused(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(UnsupportedModelError, match="GPT2LMHeadModel"):
        ModelMaker(folder, tuple(range(6))).make()


def test_templates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base")
    for template in (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",  # no special token behind an answer
        "{{ messages[0].content }}<|im_end|>",  # leaves out what an assistant said
    ):
        write_tokenizer(folder, tmp_path / "tokenizer", template)
        with pytest.raises(InvalidRequestError):
            Codec(tmp_path / "tokenizer")
    write_tokenizer(folder, tmp_path / "tokenizer", "{% for %}")
    with pytest.raises(UnsupportedModelError, match="malformed"):
        Codec(tmp_path / "tokenizer")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        write_tokenizer(folder, tmp_path / "other")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        write_tokenizer(tmp_path, tmp_path / "other")
