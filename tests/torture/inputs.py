"""Generated inputs for what reads texts of others: the parser, the tokenizer, the API.

Our own generator draws soups of the language's pieces some hundred times as fast as hypothesis, whose
property tests (tests/lang) shrink what is found here.
"""

from __future__ import annotations

import faulthandler
import json
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import httpx

from pasta_async import Client
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
from pasta_async.server import create_app
from pasta_async.testing import ScriptedBackend
from pasta_async.tokenizer import Tokenizer
from tests.lang.language_texts import PIECES, closing, outcome, without_tags
from tests.pasta_tiny import PASTA_TINY
from tests.torture.plan import Figures, Plan

HANGS = 60.0
"""Seconds after which an input counts as a hang: the process says where it is, and ends."""

BLOCK = 100
"""Inputs of each kind that share a seed."""

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


def read_text(drawn: random.Random) -> None:
    """The parser and `check`: the same for any cut, and no character is lost."""
    text = soup(drawn, SHORT)
    document = parse(text)
    assert document.format() == text + closing(document)
    assert document.text == without_tags(text)
    assert check(text) == list(document.diagnostics)
    first, second = sorted((drawn.randrange(len(text) + 1), drawn.randrange(len(text) + 1)))
    parser = ChunkParser if drawn.random() < 0.3 else MainParser
    pieces = [(text[:first], False), (text[first:second], False), (text[second:], False)]
    assert outcome(parser(), pieces) == outcome(parser(), [(text, False)])


def read_tokens(drawn: random.Random) -> None:
    """A trained model's stream, tags as ids among it, is read back from its written form."""
    pieces: list[tuple[str, bool]] = []
    for _ in range(drawn.randrange(1, 9)):
        tag = drawn.random() < 0.6
        pieces.append((drawn.choice(TAG_TOKENS), True) if tag else (soup(drawn, SHORT), False))
    parser = MainParser()
    outcome(parser, pieces)
    nodes = (replace(node, chunk=Chunk()) if isinstance(node, Promise) else node for node in parser.nodes)
    document = Document(tuple(nodes))
    assert parse(document.format()) == document


@cache
def _tokenizer() -> tuple[Tokenizer, set[int]]:
    """A tokenizer, and the ids that it must never read out of somebody's text."""
    added = json.loads((PASTA_TINY / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    return Tokenizer.from_folder(PASTA_TINY), {entry["id"] for entry in added}


def check_typed(text: str) -> None:
    """Typed text is data: it comes back as it was, without a tag or a special token among its ids."""
    tokenizer, commands = _tokenizer()
    ids = tokenizer.encode(text)
    assert commands.isdisjoint(ids)
    assert tokenizer.decode(ids) == text
    ids, empty = [tokenizer.encode_chat([{"role": "user", "content": typed}], {}) for typed in (text, "x")]
    assert Counter(i for i in ids if i in commands) == Counter(i for i in empty if i in commands)
    assert text in tokenizer.decode(ids)


def read_typed(drawn: random.Random) -> None:
    """See `check_typed`."""
    check_typed(soup(drawn, [*SHORT, *SPELLED]))


CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Why?"}]}
NAMES = (
    *("model", "messages", "prompt", "max_tokens", "temperature", "top_p", "stop", "stream", "n", "seed"),
    *("tools", "logit_bias", "response_format", "pasta", "nonsense", "role", "content", "type", "text"),
    *("limits", "timeout", "stream_options", "include_usage", "\ud800", "", "__class__"),
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


def draw_body(drawn: random.Random) -> bytes:
    """A request of the API that is more or less wrong."""
    body = dict(CHAT) if drawn.random() < 0.7 else {"model": "scripted", "prompt": "Why?"}
    for _ in range(drawn.randrange(4)):
        body[drawn.choice(NAMES)] = _value(drawn)
    raw = json.dumps(body, ensure_ascii=drawn.random() < 0.5).encode("utf-8", "surrogatepass")
    if drawn.random() < 0.1:
        at = drawn.randrange(len(raw))
        raw = raw[:at] + drawn.randbytes(drawn.randrange(3)) + raw[at + drawn.randrange(3) :]
    return raw


async def send(http: httpx.AsyncClient, body: bytes) -> None:
    """A request is answered, or refused with an error in OpenAI's form that blames whoever asked."""
    for path in ("/v1/chat/completions", "/v1/completions"):
        reply = await http.post(path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 200 or 400 <= reply.status_code < 500, (reply.status_code, body)
        if reply.status_code != 200:
            assert reply.json()["error"]["message"]


KINDS = {"text": read_text, "tokens": read_tokens, "typed": read_typed}


async def generate(plan: Plan) -> Figures:
    """Try inputs of each kind in turn, for as long as is planned.

    Fails with the first that is not as it should be, and ends the process at one that takes `HANGS` seconds.
    """
    tried = Counter[str]()
    app = create_app(Client(ScriptedBackend("Fine.")))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            for number in plan.numbers():
                faulthandler.dump_traceback_later(HANGS, exit=True)
                try:
                    for kind, read in KINDS.items():
                        drawn = plan.random(kind, number)
                        for _ in range(BLOCK):
                            read(drawn)
                            tried[kind] += 1
                    await send(http, draw_body(plan.random("body", number)))
                    tried["body"] += 1
                except Exception as error:
                    error.add_note(f"--seed {plan.seed} --first {number} --count 1")
                    raise
                finally:
                    faulthandler.cancel_dump_traceback_later()
    return dict(tried)
