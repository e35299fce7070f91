"""Generated inputs for what reads texts of others: the parser, `check`, the guard, the schema of the API.

The generator is our own: it draws soups of the language's pieces some hundred times as fast as hypothesis,
whose property tests (tests/lang) shrink what is found here.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from pasta_async import Client
from pasta_async.backends.guard import free_marker, mark, texts_in
from pasta_async.backends.local.bases import default_model
from pasta_async.backends.local.opening import open_checkpoint
from pasta_async.backends.tokenization import TextCodec
from pasta_async.errors import InvalidRequestError
from pasta_async.lang import (
    MAX_TAG,
    TAG_TOKENS,
    Chunk,
    ChunkParser,
    Document,
    MainParser,
    Promise,
    check,
    parse,
)
from pasta_async.server import ServerSettings
from pasta_async.server.errors import ApiError, api_error
from pasta_async.server.requests import (
    ChatRequest,
    CompletionRequest,
    check_request,
    generate_kwargs,
    parse_body,
)
from pasta_async.server.service import Admission, Service
from pasta_async.testing import ScriptedBackend
from tests.lang.language_texts import PIECES, closing, outcome, without_tags
from tests.torture.engines import SHIPPED
from tests.torture.measured import Plan

HANGS = 60.0
"""Seconds after which an input counts as a hang: the process says where it is, and ends."""

BLOCK = 1000
"""Inputs of one kind that share a seed."""

SHORT = [piece for piece in PIECES if len(piece) < MAX_TAG / 2]
LONG = [piece for piece in PIECES if len(piece) >= MAX_TAG / 2]
SPELLED = (
    *("<|end|>", "<|system|>", "<|assistant|>", "<|im_start|>", "<repo_name>"),
    *("<|im_end|>", "</s>", "<0x0A>", "\ue000", "\u2581", "e\u0301"),
)
LETTERS = "<>/\\ \n=\"'psync\u4e16\U0001f30d\u00e9"


def soup(drawn: random.Random, pieces: list[str]) -> str:
    """Some pieces, and now and then characters of tags, or a piece that is too long for a tag."""
    parts = drawn.choices(pieces, k=drawn.randrange(1, 8))
    if drawn.random() < 0.3:
        parts.insert(drawn.randrange(len(parts)), "".join(drawn.choices(LETTERS, k=drawn.randrange(1, 6))))
    if drawn.random() < 0.02:
        parts.append(drawn.choice(LONG))
    return "".join(parts)


def draw_text(drawn: random.Random) -> Any:
    """A text, two places to cut it, and whether it stands inside a chunk."""
    text = soup(drawn, SHORT)
    cut = sorted((drawn.randrange(len(text) + 1), drawn.randrange(len(text) + 1)))
    return {"text": text, "cut": cut, "inside": drawn.random() < 0.3}


def read_text(case: Any) -> int:
    """The parser and `check`: the same for any cut, and no character is lost. Returns the input's size."""
    text, cut = case["text"], case["cut"]
    document = parse(text)
    assert document.format() == text + closing(document)
    assert document.text == without_tags(text)
    assert check(text) == list(document.diagnostics)
    pieces = [text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]]
    kind = ChunkParser if case["inside"] else MainParser
    assert outcome(kind(), [(piece, False) for piece in pieces]) == outcome(kind(), [(text, False)])
    return len(text)


def draw_tokens(drawn: random.Random) -> Any:
    """What a trained model writes, in pieces: text, and tags that come as ids (True)."""
    pieces: list[tuple[str, bool]] = []
    for _ in range(drawn.randrange(1, 9)):
        tag = drawn.random() < 0.6
        pieces.append((drawn.choice(TAG_TOKENS), True) if tag else (soup(drawn, SHORT), False))
    return pieces


def read_tokens(case: Any) -> int:
    """What was read of a trained model's stream is read back from its written form."""
    parser = MainParser()
    outcome(parser, case)
    nodes = (replace(node, chunk=Chunk()) if isinstance(node, Promise) else node for node in parser.nodes)
    document = Document(tuple(nodes))
    assert parse(document.format()) == document
    return sum(len(piece) for piece, _ in case)


@cache
def tokenizer(folder: Path) -> tuple[TextCodec, list[str], set[int]]:
    """A model's tokenizer, and what it must never read out of somebody's text."""
    files = open_checkpoint(folder).tokenizer()
    commands = {entry["content"]: entry["id"] for entry in files.tokenizer["added_tokens"]}
    assert {*TAG_TOKENS} < commands.keys()
    return files.codec(folder), [*commands], {*commands.values()}


def draw_typed(drawn: random.Random) -> Any:
    """A text that somebody types, and whether it is tried as a message, too."""
    return {"text": soup(drawn, [*SHORT, *SPELLED]), "chat": drawn.random() < 0.05}


def guard_text(case: Any, folder: Path = SHIPPED) -> int:
    """Typed text is data: it comes back as it was, without a tag or a special token among its ids."""
    codec, commands, forbidden = tokenizer(folder)
    text = case["text"]
    marker = free_marker(texts_in([text]))
    marked = mark(text, commands, marker)
    assert marked.replace(marker, "") == text
    assert not any(command in marked for command in commands)
    ids = codec.encode(text)
    assert forbidden.isdisjoint(ids)
    assert codec.detokenize(ids) == text
    if case["chat"]:
        ids = codec.encode_chat([{"role": "user", "content": text}], {"tools": [{"x": text}]})
        empty = codec.encode_chat([{"role": "user", "content": "x"}], {})
        assert Counter(i for i in ids if i in forbidden) == Counter(i for i in empty if i in forbidden)
        assert text in codec.detokenize(ids)
    return len(text)


def guard_text_of_smol(case: Any) -> int:
    """The same with the tokenizer of pasta-smol."""
    return guard_text(case, default_model())


CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Why?"}]}
FIELDS = (*ChatRequest.model_fields, *CompletionRequest.model_fields, *ChatRequest.passed_on)
NAMES = (
    *(*FIELDS, "pasta", "nonsense", "role", "content", "type", "text", "limits", "timeout", "include_usage"),
    *("\ud800", "", "__class__"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 128, 2**63, -(2**70), 0.5, 1e400, -0.0, float("nan")),
    *("", "x", "1", "user", "<sync/>", "\x00", "\ud800", "\ue000", "scripted", "x" * 3000),
    *([], [[]], {}, [None], {"a": 1}, {"include_usage": True}),
    *([{"role": "user", "content": "x"}], [{"type": "text", "text": "x"}]),
)


def _value(drawn: random.Random, depth: int = 0) -> Any:
    if depth > 3 or drawn.random() < 0.6:
        return drawn.choice(VALUES)
    if drawn.random() < 0.4:
        return [_value(drawn, depth + 1) for _ in range(drawn.randrange(4))]
    return {drawn.choice(NAMES): _value(drawn, depth + 1) for _ in range(drawn.randrange(4))}


def _body(drawn: random.Random) -> bytes:
    body = dict(CHAT) if drawn.random() < 0.7 else {"model": "scripted", "prompt": "Why?"}
    for _ in range(drawn.randrange(4)):
        body[drawn.choice(NAMES)] = _value(drawn)
    raw = json.dumps(body, ensure_ascii=drawn.random() < 0.5).encode("utf-8", "surrogatepass")
    if drawn.random() < 0.1:
        at = drawn.randrange(len(raw))
        raw = raw[:at] + drawn.randbytes(drawn.randrange(3)) + raw[at + drawn.randrange(3) :]
    return raw


@cache
def _service() -> Service:
    client, settings = Client(ScriptedBackend("Fine.")), ServerSettings()
    http = httpx.AsyncClient(verify=False)  # which would read all certificates
    return Service(client, asyncio.run(client.connect()), settings, Admission(settings), http)


def draw_body(drawn: random.Random) -> Any:
    """A body, and whether it is of a chat."""
    raw = _body(drawn)
    return {"body": raw.decode("latin-1"), "chat": drawn.random() < 0.7}


def ask(case: Any) -> int:
    """A body for the API: taken, or refused with an error that can be sent and blames whoever asked."""
    raw = case["body"].encode("latin-1")
    try:
        body = parse_body(raw, ChatRequest if case["chat"] else CompletionRequest)
        check_request(body, _service())
        assert len(generate_kwargs(body, _service())) == body.choices
        assert body.prompts
    except (ApiError, InvalidRequestError) as error:
        refused = api_error(error)
        assert 400 <= refused.status < 500
        assert refused.response.body
    return len(raw)


class Kind(NamedTuple):
    """How inputs of a kind are drawn, as JSON, and what must hold of each; that returns its size."""

    draw: Callable[[random.Random], Any]
    check: Callable[[Any], int]


KINDS = {
    "text": Kind(draw_text, read_text),
    "tokens": Kind(draw_tokens, read_tokens),
    "guard": Kind(draw_typed, guard_text),
    "guard of pasta-smol": Kind(draw_typed, guard_text_of_smol),
    "schema": Kind(draw_body, ask),
}


def possible() -> tuple[str, ...]:
    """The kinds that can be tried here: pasta-smol's tokenizer comes with its base."""
    try:
        default_model()
    except InvalidRequestError:
        return tuple(kind for kind in KINDS if kind != "guard of pasta-smol")
    return tuple(KINDS)


def generate(plan: Plan) -> dict[str, Any]:
    """Try inputs of each kind in turn, a thousand at a time, for as long as is planned; the figures.

    Fails with the first that is not as it should be, and ends the process at one that takes `HANGS` seconds.
    """
    tried, size, kinds = Counter[str](), Counter[str](), possible()
    slowest: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for kind in kinds:  # the first of them loads a tokenizer
        KINDS[kind].check(KINDS[kind].draw(random.Random(0)))
    for number in plan.numbers():
        for kind in kinds:
            drawn = plan.random(kind, number)
            faulthandler.dump_traceback_later(HANGS, exit=True)
            for _ in range(BLOCK):
                case = KINDS[kind].draw(drawn)
                began = time.process_time()
                try:
                    size[kind] += KINDS[kind].check(case)
                except Exception as error:
                    error.add_note(f"of the kind {kind}: --seed {plan.seed} --first {number} --count 1")
                    error.add_note(f"for corpus.jsonl: {json.dumps({'kind': kind, 'case': case})}")
                    raise
                slowest[kind] = max(slowest[kind], time.process_time() - began)
                tried[kind] += 1
            faulthandler.cancel_dump_traceback_later()
    return {
        "inputs": tried.total(),
        **tried,
        "characters": size.total(),
        "seconds": round(plan.elapsed),
        "milliseconds of the slowest": {kind: round(1000 * value, 1) for kind, value in slowest.items()},
    }
