"""Tags stand between the tokens of the plain text, whatever tokenizer a model has."""

# tokenizers leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pasta_async.lang import Chunk, Document, Promise, Sync, Text, parse
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.model_folder import TokenizerFiles
from pasta_async.tokenizer import Tokenizer as PastaTokenizer
from pasta_async.training.views import Codec, encode_views, pack_plain, pack_views
from tests.helpers.vocabularies import split

CORPUS = [
    "Here are the two things:\n\n1. **Tea**: It is green.\n\n2. **Coffee**: It is brown.\n\nSo take the tea.",
    "- The first thing is tea.\n- The second is coffee, isn't it?\n\nIn the end, take it in 12 or 2024.\n",
    "\u201cTea\u201d \u2014 caf\u00e9, \u6f22\u5b57 and \U0001f389.\n    return the(tea)\n\n\n\tThe end.\n\n",
] * 20
WORDS = "Tea,tea,the, the,It is ,1. ,- ,12,2024,**,:,., ,   ,<sync/>".split(",")
_OTHERS = [".\n\n", "\n", "\n\n", "\t", "\r", "\u201c", "\u6f22\u5b57", "\u00e9", "e\u0301", "\U0001f389"]


def byte_level(*before: Any, regex: bool = False, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, last])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts)
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = raw["added_tokens"][:1]  # bytes are no commands
    return Tokenizer.from_str(json.dumps(raw))


class TextCodec(Codec):
    """A tokenizer with the tags, as documents are encoded with it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAG_TOKENS])
        files = TokenizerFiles(json.loads(tokenizer.to_str()), {}, None, (0,))
        PastaTokenizer.__init__(self, files)  # there is no folder, and no chat template
        assert self.tags
        self.tag_ids, self.end = self.tags, self.end_ids[0]

    def joined(self, document: Document) -> list[int]:
        """All that is in a document, and a sync."""
        *_, last = [view for view in encode_views(self, ending(document)) if view.thread == 0]
        return last.context

    def written(self, document: Document) -> str:
        """The written form of a document as it is encoded."""
        return self.decode(self.joined(document)).removesuffix("<sync/>")

    def whole(self, document: Document) -> list[int]:
        """The ids of all that a document says, its tags and topics left out."""
        kept: list[int] = []
        inside = False
        for token in self.joined(document):
            inside = inside or token == self.tag_ids.promise
            kept += [token] if not inside and token not in self.tag_ids else []
            inside = inside and token != self.tag_ids.end
        return kept


def ending(document: Document) -> Document:
    """The document with all of its chunks joined, so that main's last view holds everything."""
    return Document((*document.nodes, Sync()))


CODECS = {
    "gpt-2": TextCodec(byte_level(regex=True)),
    "smollm2": TextCodec(byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True)),
    "llama-3": TextCodec(byte_level(split(r"\p{N}{1,3}"))),
    "qwen": TextCodec(byte_level(split(r"\p{N}"), normalizer=normalizers.NFC())),
    "sentencepiece": TextCodec(sentencepiece()),
}
TEXTS = st.lists(st.sampled_from([*WORDS, *_OTHERS]), max_size=8).map("".join)


def promised(text: str) -> Promise:
    return Promise("tea", 10, Chunk((Text(text),) if text else ()))


NODES = st.one_of(TEXTS.filter(bool).map(Text), TEXTS.map(promised), st.just(Sync()))
DOCUMENTS = st.lists(NODES, max_size=10).map(lambda nodes: Document(tuple(nodes)))


def promise(text: str) -> str:
    return f'<promise topic="x" tokens="10"/><async>{text}</async>'


@pytest.mark.parametrize("name", CODECS)
@given(document=DOCUMENTS)
def test_removing_the_tags_leaves_the_natural_encoding(name: str, document: Document) -> None:
    codec = CODECS[name]
    assert codec.whole(document) == codec.encode(document.text)
    *of_promise, sync = codec.tag_ids
    tags: list[int] = []
    for node in ending(document).nodes:
        if not isinstance(node, Text):
            tags += of_promise if isinstance(node, Promise) else [sync]
    assert [token for token in codec.joined(document) if token in codec.tag_ids] == tags


@pytest.mark.parametrize("name", CODECS)
def test_both_forms_are_trained_on_the_same_tokens(name: str) -> None:
    codec = CODECS[name]
    chunks = promise("It is green."), promise("Coffee is 2024.")
    document = parse("Two things:\n\n1. {}\n\n2. {}<sync/>\n\nTake the tea.".format(*chunks))
    parallel, plain = pack_views(codec, [codec.end], document), pack_plain(codec, [codec.end], document)
    targets = sorted(parallel.ids[index] for index in parallel.targets)
    text_tokens = [token for token in targets if token not in codec.tag_ids]
    values = 2 * (codec.encode("x") + codec.encode("10"))
    assert text_tokens == sorted([*(plain.ids[index] for index in plain.targets), *values])


@pytest.mark.parametrize("name", CODECS)
def test_a_space_in_front_of_a_chunk_goes_with_its_word(name: str) -> None:
    document = parse(f"1. {promise('the tea is green.')} So take it.")
    assert CODECS[name].written(document) == f"1.{promise(' the tea is green.')} So take it."


def test_a_blank_line_of_one_token_with_the_full_stop_ends_the_chunk() -> None:
    written = f"{promise('It is green.')}<sync/>\n\nSo take the tea."
    stopped = f"{promise('It is green.' + chr(10) * 2)}<sync/>So take the tea."
    assert CODECS["llama-3"].written(parse(written)) == stopped
    assert CODECS["gpt-2"].written(parse(written)) == written


def test_tags_keep_their_order_where_several_fall_into_one_token() -> None:
    codec = CODECS["llama-3"]
    assert len(codec.encode(" the")) == 1
    document = parse(f" {promise('t')}{promise('h')}<sync/>e")
    assert codec.written(document) == f"{promise(' the')}{promise('')}<sync/>"
    assert not parse(codec.written(document)).diagnostics


def test_an_ignored_tag_keeps_its_chunk_where_it_is() -> None:
    codec = CODECS["llama-3"]
    document = parse(f"1. {promise('Tea <sync/> is.')} The end.")
    assert parse(codec.decode(codec.joined(document))) == ending(document)
