"""Generated inputs for what reads texts of others: the tokenizer, the parser of the language, and the API."""

from __future__ import annotations

import faulthandler
import json
import random
from collections import Counter
from functools import cache
from typing import Any

import httpx

from pasta_async.lang import parse
from pasta_async.server import create_app
from pasta_async.testing import ScriptedBackend
from pasta_async.tokenizer import Tokenizer
from tests.helpers.language_texts import PIECES, closing
from tests.helpers.plan_forms import KINDS, draw_form, keep_promise
from tests.pasta_tiny import PASTA_TINY
from tests.torture.trials import Figures, Trials

HANGS = 60.0
"""Seconds after which an input counts as a hang: the process says where it is, and ends."""

BLOCK = 100
"""Typed texts for each request to the API, which takes so many times as long."""

WRITTEN = 4
"""Texts that the parser reads for each that the tokenizer reads, which takes many times as long."""

SPELLED = (
    *("<|end|>", "<|system|>", "<|assistant|>", "<|im_start|>", "<repo_name>"),
    *("<|im_end|>", "</s>", "<0x0A>", "\ue000", "\u2581", "e\u0301"),
)
LETTERS = "<>/\\ \n=\"'psync\u4e16\U0001f30d\u00e9"


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
    ids = tokenizer.encode_chat([{"role": "user", "content": text}], {})
    assert [i for i in ids if i in commands] == _commands_of_template()
    assert text in tokenizer.decode(ids)


@cache
def _commands_of_template() -> list[int]:
    """The tags and special tokens that the chat template writes around a message."""
    tokenizer, commands = _tokenizer()
    return [i for i in tokenizer.encode_chat([{"role": "user", "content": "x"}], {}) if i in commands]


def check_parsed(text: str) -> None:
    """Any text is a document, which is written as it was but for ends that are missing."""
    document = parse(text)
    assert document.format() == text + closing(document)


def draw_typed(drawn: random.Random) -> str:
    """A soup of tags, special tokens and their letters."""
    parts = drawn.choices((*PIECES, *SPELLED), k=drawn.randrange(1, 8))
    if drawn.random() < 0.3:
        parts.insert(drawn.randrange(len(parts)), "".join(drawn.choices(LETTERS, k=drawn.randrange(1, 6))))
    return "".join(parts)


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


async def generate(trials: Trials) -> Figures:
    """Try typed texts, which the tokenizer and the parser read, and requests, for as long as is planned.

    Fails with the first that is handled wrongly, and ends the process if an input takes `HANGS` seconds.
    """
    tried = Counter[str]()
    app = create_app(ScriptedBackend("Fine."))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            for number in trials.numbers():
                drawn = trials.random(number)
                faulthandler.dump_traceback_later(HANGS, exit=True)
                try:
                    for _ in range(BLOCK):
                        check_typed(draw_typed(drawn))
                        for _ in range(WRITTEN):
                            check_parsed(draw_typed(drawn))
                    await send(http, draw_body(drawn))
                except Exception as error:
                    error.add_note(f"--seed {trials.seed} --first {number} --count 1")
                    raise
                finally:
                    faulthandler.cancel_dump_traceback_later()
                tried.update(typed=BLOCK, written=WRITTEN * BLOCK, bodies=1)
    return dict(tried)


async def fill_forms(trials: Trials) -> Figures:
    """Fill forms; each that `check` says yes to has to become a valid object within the bounds."""
    outcomes = {"filled": 0, "refused": 0}
    for number in trials.numbers():
        drawn = trials.random("plans", number)
        form, endless, kinds = draw_form(drawn), drawn.random() < 0.5, drawn.choice(KINDS)
        try:
            promised = await keep_promise(form, number, endless=endless, kinds=kinds)
        except Exception as error:
            raise AssertionError(f"plans item {number}: {form}") from error
        outcomes["filled" if promised else "refused"] += 1
    return outcomes
