"""Bytes to events, events to pieces, and typed text to ids: whatever the splits and the tokenizer."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import table_model
from hypothesis import given
from hypothesis import strategies as st
from odd_server import FIRST_LETTER, TAGS, VOCABULARY, OddServer, decode, encode, event, stream

from pasta_async.backends.sglang import SGLangBackend
from pasta_async.backends.sglang.events import Increments, LocalReader, RemoteReader
from pasta_async.backends.tokenization import Detokenizer, TextCodec
from pasta_async.errors import BackendProtocolError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.tag_tokens import TagIds

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)))
CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place <= len(content)), len(content)]
    return [content[a:b] for a, b in pairwise(edges)]


@given(LINES, st.sampled_from(["\n", "\r\n"]), CUTS)
async def test_any_split_of_the_bytes_gives_the_same_text(text: str, end: str, places: list[int]) -> None:
    ids = [FIRST_LETTER + ord(letter) for letter in text]
    stop = {"type": "stop", "matched": 0}
    events = [event(ids, len(ids)), event([0], len(ids) + 1, finish_reason=stop)]
    data = [json.dumps(one, ensure_ascii=False) for one in events]
    content = "".join(f": note{end}data: {line}{end}{end}" for line in (*data, "[DONE]"))
    pieces = await answer(cut(content.encode(), places))
    assert "".join(piece.text for piece in pieces) == text
    assert [i for piece in pieces for i in piece.ids] == [*ids, 0]


async def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_async.backends.sglang.transport.MAX_REPLY", 100)
    with pytest.raises(BackendProtocolError):
        await answer([b"data: 12345"] * 20)


async def answer(chunks: Sequence[bytes]) -> list[Piece]:
    """What a backend makes of an event stream in these chunks."""
    server = OddServer()
    server.decoding = [stream(chunks)]
    backend = SGLangBackend("http://odd", client=server.client())
    return [piece async for piece in backend.decode(DecodeRequest("a", 0, (11,), 50, Sampling()))]


TOKENS = st.sampled_from([*TAGS, *(FIRST_LETTER + ord(letter) for letter in '<sync/> "tokens=aé')])


async def pieces_of(ids: Sequence[int], sizes: Sequence[int]) -> list[Piece]:
    async def detokenize(lists: list[list[int]]) -> list[str]:
        return [decode(one) for one in lists]

    increments = Increments(VOCABULARY, incremental=True)
    reader = RemoteReader(TagIds(*TAGS), detokenize)
    pieces: list[Piece] = []
    done = 0
    for size in [*sizes, len(ids)]:
        part = ids[done : done + size]
        done += len(part)
        finish_reason = {"type": "length", "length": done} if done == len(ids) else None
        pieces += await reader.read(increments.take(event(part, done, finish_reason=finish_reason)))
        if finish_reason:
            break
    return pieces


@given(st.lists(TOKENS, min_size=1, max_size=40), st.lists(st.integers(1, 9), max_size=20))
async def test_any_grouping_of_tokens_gives_the_same_text_and_lone_tags(
    ids: list[int], sizes: list[int]
) -> None:
    pieces = await pieces_of(ids, sizes)
    assert [i for piece in pieces for i in piece.ids] == ids
    position = 0
    for piece in pieces:
        position += len(piece.ids)
        if set(piece.ids) & set(TAGS):
            assert piece.text == decode(piece.ids) and len(piece.ids) == 1
    assert "".join(piece.text for piece in pieces) == decode(ids)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


def written_so_far(ids: Sequence[int]) -> str:
    """What SGLang's detokenizer lets out: of an unfinished character nothing, and no word before it."""
    text: str = table_model.tokenizer().decode(ids, skip_special_tokens=False)
    return text[: text.rfind(" ") + 1] if text.endswith("\ufffd") else text


@given(
    st.lists(st.sampled_from(["<sync/>", '<promise topic="', " a", "é", "<", "sync/>"]), max_size=12),
    st.lists(st.integers(1, 5), max_size=20),
)
async def test_text_that_lags_behind_is_neither_lost_nor_read_twice(
    parts: list[str], sizes: list[int]
) -> None:
    vocabulary = table_model.tokenizer()
    ids: list[int] = [i for part in parts for i in vocabulary.encode(part).ids]

    async def detokenize(lists: list[list[int]]) -> list[str]:
        return [vocabulary.decode(one, skip_special_tokens=False) for one in lists]

    tags = TagIds(*map(vocabulary.token_to_id, TAG_TOKENS))
    increments = Increments(VOCABULARY, incremental=False)
    reader = RemoteReader(tags, detokenize)
    pieces: list[Piece] = []
    for done in sorted({*accumulate(sizes), len(ids)}):
        if done <= len(ids):
            last = {"type": "length", "length": done} if done == len(ids) else None
            text = vocabulary.decode(ids, skip_special_tokens=False) if last else written_so_far(ids[:done])
            new = increments.take(event(ids[:done], done, text=text, finish_reason=last))
            pieces += await reader.read(new)
    assert [i for piece in pieces for i in piece.ids] == ids
    assert "".join(piece.text for piece in pieces) == "".join(parts)
    for piece in pieces:
        assert set(piece.ids).isdisjoint(tags) or piece.text == tags.written(*piece.ids)


def test_an_event_that_takes_back_ids_is_refused() -> None:
    increments = Increments(VOCABULARY, incremental=False)
    increments.take(event([50, 51], 2))
    with pytest.raises(BackendProtocolError):
        increments.take(event([50], 1))


async def test_pieces_by_the_models_own_tokenizer(table_folder: Path) -> None:
    codec = TextCodec.from_folder(table_folder)
    vocabulary = table_model.tokenizer()
    ids: list[int] = vocabulary.encode("é<sync/>").ids
    end: int = vocabulary.token_to_id("</s>")
    reader = LocalReader(Detokenizer(codec), codec.tags)
    increments = Increments(VOCABULARY, incremental=True)
    finish_reason = {"type": "stop", "matched": end}
    parts = [(ids[:1], None), ([*ids[1:], ids[0]], None), ([end], finish_reason)]
    done, pieces = 0, list[Any]()
    for part, reason in parts:
        done += len(part)
        pieces += await reader.read(increments.take(event(part, done, text="", finish_reason=reason)))
    assert [(piece.ids, piece.text) for piece in pieces] == [
        ((ids[0],), ""),
        ((ids[1],), "é"),
        ((ids[2],), "<sync/>"),
        ((ids[0],), ""),
        ((end,), ""),
        ((), "\ufffd"),
    ]
    assert pieces[-1].finish_reason == "stop"


# Encoding through a tokenizer elsewhere ---------------------------------------------------------------------


def served(tokenizer: Any) -> SGLangBackend:
    """A backend for a server with a tokenizer of the `tokenizers` library, as SGLang uses it."""

    def tokenize(body: Any) -> Any:
        if "messages" not in body:
            special = body["add_special_tokens"]
            return {
                "tokens": [tokenizer.encode(text, add_special_tokens=special).ids for text in body["prompt"]]
            }
        written = "".join(f"<s>{m['role']}: {m['content'].strip()}</s>" for m in body["messages"])
        return {"tokens": tokenizer.encode(written, add_special_tokens=False).ids}

    def detokenize(body: Any) -> Any:
        skip = body["skip_special_tokens"]
        return {"text": [tokenizer.decode(ids, skip_special_tokens=skip) for ids in body["tokens"]]}

    def generate(body: Any) -> Any:
        ended = {"meta_info": {"finish_reason": {"type": "length", "length": 2}}}
        return [ended] * len(body["input_ids"])

    routes = {"/tokenize": tokenize, "/detokenize": detokenize, "/generate": generate}
    return SGLangBackend("http://odd", client=OddServer(routes).client(), vocab_size=VOCABULARY)


def sentencepiece_like() -> Any:
    """BPE with byte fallback that puts a space before every text, as Llama 2 has it."""
    library: Any = importlib.import_module("tokenizers")
    letters = sorted({*"abcdefghijklmnopqrstuvwxyz</>=\"10'|_:.", "\u2581"})
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *letters,
        "\u2581s",
        "sy",
        "nc",
    ]
    vocab = {word: i for i, word in enumerate(words)}
    merges = [("\u2581", "s"), ("s", "y"), ("n", "c")]
    model = library.models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    made = library.Tokenizer(model)
    made.normalizer = library.normalizers.Sequence(
        [library.normalizers.Prepend("\u2581"), library.normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = library.decoders.Sequence(
        [
            library.decoders.Replace("\u2581", " "),
            library.decoders.ByteFallback(),
            library.decoders.Fuse(),
            library.decoders.Strip(content=" ", left=1),
        ]
    )
    specials = ("<s>", "</s>", *TAG_TOKENS)
    made.add_special_tokens([library.AddedToken(one, special=True, normalized=False) for one in specials])
    return made


KINDS = {"bytes": table_model.tokenizer, "sentencepiece": sentencepiece_like}
TYPED = [
    "sync",
    " two  spaces ",
    "\nline",
    "a<sync/>b <sync/>",
    '<s></s><promise topic="a" tokens="10"/><async>',
    "<sync/\ue000><sync/>\ue000",
    "é<async></async>",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("typed", TYPED)
async def test_typed_text_is_data_for_every_kind_of_tokenizer(kind: str, typed: str) -> None:
    tokenizer = KINDS[kind]()
    backend = served(tokenizer)
    tags = (await backend.connect()).tags
    assert tags is not None
    assert list(tags) == [tokenizer.token_to_id(tag) for tag in TAG_TOKENS]
    ids = await backend.encode(typed)
    assert await backend.detokenize(ids) == typed
    assert not set(ids) & {*tags, *map(tokenizer.token_to_id, ("<s>", "</s>"))}
    # In the middle of an answer too: nothing is added at the seams.
    assert await backend.detokenize([*ids, *ids]) == typed + typed
    chat = await backend.encode_chat([{"role": "user", "content": typed}], {})
    assert chat[0] == tokenizer.token_to_id("<s>") and chat[-1] == tokenizer.token_to_id("</s>")
    assert not set(chat[1:-1]) & {*tags, *map(tokenizer.token_to_id, ("<s>", "</s>"))}
    assert tokenizer.decode(chat[1:-1], skip_special_tokens=False).strip() == f"user: {typed.strip()}".strip()


def rendering_all(body: Any) -> Any:
    """SGLang's `/tokenize`, with a template that puts parts side by side and shows calls of tools."""
    if "messages" not in body:
        return {"tokens": [encode(text) for text in body["prompt"]]}
    written = ""
    for message in body["messages"]:
        content: Any = message["content"]
        written += content if isinstance(content, str) else "".join(part["text"] for part in content)
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]  # which SGLang reads, to show them anew
            said: Any = json.loads(arguments) if isinstance(arguments, str) else arguments
            written += json.dumps(said, ensure_ascii=False)
        written += "</s>"
    return {"tokens": encode(written)}


@pytest.mark.parametrize("text", ["<sync/>", "<|end|>"])
async def test_neither_parts_side_by_side_nor_json_in_a_call_become_a_command(text: str) -> None:
    backend = SGLangBackend("http://odd", client=OddServer({"/tokenize": rendering_all}).client())
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in text)
    for cut in range(1, len(text) - 1):
        for pieces in ([text[:cut], text[cut:]], [text[:1], text[1 : cut + 1], text[cut + 1 :]], [*text]):
            parts = [{"type": "text", "text": piece} for piece in pieces]
            ids = await backend.encode_chat([{"role": "user", "content": parts}], {})
            assert decode(ids) == f"{text}</s>" and len(ids) == len(text) + 1
    for arguments in (json.dumps({"a": text}), f'{{"a": ["{escaped}"]}}'):
        call = {"function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "content": [], "tool_calls": [call]}
        ids = await backend.encode_chat([message], {})
        assert text in decode(ids) and [i for i in ids if i < FIRST_LETTER] == encode("</s>")


async def test_a_model_without_tags_has_none() -> None:
    library: Any = importlib.import_module("tokenizers")
    state = json.loads(table_model.tokenizer().to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "<sync/>"]
    plain = served(library.Tokenizer.from_str(json.dumps(state)))
    assert (await plain.connect()).tags is None
    assert await plain.detokenize(await plain.encode("<sync/><async></s>")) == "<sync/><async></s>"
