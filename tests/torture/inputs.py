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
from functools import cache
from pathlib import Path
from typing import Any

import pasta_async
from pasta_async import Client
from pasta_async.backends.guard import free_marker, mark, texts_in
from pasta_async.backends.tokenization import TextCodec
from pasta_async.errors import InvalidRequestError
from pasta_async.lang import MAX_TAG, TAG_TOKENS, Document, Parser, check, parse
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
from tests.lang.language_texts import PIECES, closing, outcome, outcome_of_tokens, without_tags
from tests.lang.test_hostile_texts import ENDLESS, REPEATED, hostile
from tests.torture.measured import Plan

HANGS = 60.0
"""Seconds after which an input counts as a hang: the process says where it is, and ends."""

BLOCK = 1000
"""Inputs of one kind that share a seed."""

SHORT = [piece for piece in PIECES if len(piece) < MAX_TAG / 2]
LONG = [piece for piece in PIECES if len(piece) >= MAX_TAG / 2]
SPELLED = (
    *("<|end|>", "<|system|>", "<|assistant|>"),
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


def read_text(drawn: random.Random) -> int:
    """The parser and `check`: the same for any cut, and no character is lost. Returns the input's size."""
    text = soup(drawn, SHORT)
    document = parse(text)
    assert document.format() == text + closing(document)
    assert document.text == without_tags(text)
    assert check(text) == list(document.diagnostics)
    cut = sorted((drawn.randrange(len(text) + 1), drawn.randrange(len(text) + 1)))
    pieces = [text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]]
    inside = drawn.random() < 0.3
    whole = outcome(Parser("chunk" if inside else "document"), [text])
    assert outcome(Parser("chunk" if inside else "document"), pieces) == whole
    return len(text)


def read_tokens(drawn: random.Random) -> int:
    """What a trained model writes, tags that come as ids among it: what was read is read back."""
    pieces: list[tuple[str, bool]] = []
    for _ in range(drawn.randrange(1, 9)):
        tag = drawn.random() < 0.6
        pieces.append((drawn.choice(TAG_TOKENS), True) if tag else (soup(drawn, SHORT), False))
    *_, document = outcome_of_tokens(pieces)
    assert isinstance(document, Document)
    assert parse(document.format()) == document
    return sum(len(piece) for piece, _ in pieces)


@cache
def _codec() -> tuple[TextCodec, list[str], set[int]]:
    """The tokenizer of pasta-tiny, and what it must never read out of somebody's text."""
    folder = Path(pasta_async.__file__).parent / "models" / "pasta-tiny"
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    commands = {token["content"]: token["id"] for token in added}
    assert {*TAG_TOKENS, *SPELLED[:3]} <= commands.keys()
    return TextCodec.from_folder(folder), [*commands], {*commands.values()}


def guard_text(drawn: random.Random) -> int:
    """Typed text is data: it comes back as it was, without a tag or a special token among its ids."""
    codec, commands, forbidden = _codec()
    text = soup(drawn, [*SHORT, *SPELLED])
    marker = free_marker(texts_in([text]))
    marked = mark(text, commands, marker)
    assert marked.replace(marker, "") == text
    assert not any(command in marked for command in commands)
    ids = codec.encode(text)
    assert forbidden.isdisjoint(ids)
    assert codec.detokenize(ids) == text
    if drawn.random() < 0.05:
        ids = codec.encode_chat([{"role": "user", "content": text}], {"tools": [{"x": text}]})
        empty = codec.encode_chat([{"role": "user", "content": "x"}], {})
        assert Counter(i for i in ids if i in forbidden) == Counter(i for i in empty if i in forbidden)
        assert text in codec.detokenize(ids)
    return len(text)


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
    return Service(client, asyncio.run(client.connect()), settings, Admission(settings))


def ask(drawn: random.Random) -> int:
    """A body for the API: taken, or refused with an error that can be sent and blames whoever asked."""
    raw = _body(drawn)
    try:
        body = parse_body(raw, ChatRequest if drawn.random() < 0.7 else CompletionRequest)
        check_request(body, _service())
        assert len(generate_kwargs(body, _service())) == body.choices
        assert body.prompts
    except (ApiError, InvalidRequestError) as error:
        refused = api_error(error)
        assert 400 <= refused.status < 500
        assert refused.response.body
    return len(raw)


KINDS = {"text": read_text, "tokens": read_tokens, "guard": guard_text, "schema": ask}


def generate(plan: Plan, kinds: tuple[str, ...] = (*KINDS,)) -> dict[str, Any]:
    """Try inputs of each kind in turn, a thousand at a time, for as long as is planned; the figures.

    Fails with the first that is not as it should be, and ends the process at one that takes `HANGS` seconds.
    """
    tried, size = Counter[str](), Counter[str]()
    slowest: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for number in plan.numbers():
        for kind in kinds:
            drawn = plan.random(kind, number)
            faulthandler.dump_traceback_later(HANGS, exit=True)
            for _ in range(BLOCK):
                began = time.process_time()
                try:
                    size[kind] += KINDS[kind](drawn)
                except Exception as error:
                    error.add_note(f"of the kind {kind}: --seed {plan.seed} --first {number} --count 1")
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


def scaling(sizes: tuple[int, int] = (20_000, 200_000)) -> dict[str, Any]:
    """How much more a character costs in a long hostile text than in a short one: the worst kind of text."""
    works: dict[str, Callable[[str], object]] = {"parse": parse, "encode": _codec()[0].encode}
    ratios = {
        name: max(_ratio(work, kind, sizes) for kind in (*REPEATED, *ENDLESS)) for name, work in works.items()
    }
    return {"times as much for a character of a text ten times as long": ratios}


def _ratio(work: Callable[[str], object], kind: str, sizes: tuple[int, int]) -> float:
    costs: list[float] = []
    for size in sizes:
        text, times = hostile(kind, size), list[float]()
        for _ in range(2):
            began = time.process_time()
            work(text)
            times.append(time.process_time() - began)
        costs.append(min(times) / len(text))
    return round(costs[1] / costs[0], 2)
