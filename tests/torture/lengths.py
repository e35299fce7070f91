"""How the time of an input grows with its length: for the parser, a tokenizer, the schema of the API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from math import inf
from typing import Any

from pasta_async.lang import parse
from tests.lang.test_hostile_texts import ENDLESS, REPEATED, hostile
from tests.torture.engines import SHIPPED
from tests.torture.inputs import CHAT, ask, tokenizer

STEEPEST = 4.0
"""Times as much that a character of a text ten times as long may cost: ten would be quadratic."""


def _chat(content: object) -> bytes:
    return json.dumps({**CHAT, "messages": [{"role": "user", "content": content}]}).encode()


def _prompt(prompt: object) -> bytes:
    return json.dumps({"model": "scripted", "prompt": prompt}).encode()


BODIES: dict[str, Callable[[int], bytes]] = {
    "a text": lambda size: _chat("x" * size),
    "tags": lambda size: _chat("<sync/>" * (size // 7)),
    "escapes": lambda size: _chat("\u4e16" * (size // 6)),
    "halves of pairs": lambda size: _chat("x").replace(b'"x"', b'"%b"' % (b"\\ud800" * (size // 6))),
    "messages": lambda size: json.dumps({**CHAT, "messages": CHAT["messages"] * (size // 36)}).encode(),
    "parts": lambda size: _chat([{"type": "text", "text": "x"}] * (size // 30)),
    "fields": lambda size: json.dumps({**CHAT, **{f"field{k}": k for k in range(size // 16)}}).encode(),
    "the same field": lambda size: b'{"model": "scripted"%b}' % (b', "n": 1' * (size // 8)),
    "metadata": lambda size: json.dumps(
        {**CHAT, "metadata": {str(k): k for k in range(size // 14)}}
    ).encode(),
    "brackets": lambda size: _chat("x").replace(b'"x"', b"[" * size),
    "digits": lambda size: _prompt(1).replace(b"1", b"1" * size),
    "white space": lambda size: _prompt("x") + b" " * size,
    "ids": lambda size: _prompt([1] * (size // 3)),
    "lists of ids": lambda size: _prompt([[1]] * (size // 5)),
    "texts": lambda size: _prompt(["x"] * (size // 5)),
    "stops": lambda size: json.dumps({**CHAT, "stop": ["x"] * (size // 5)}).encode(),
}
"""Bodies of about so many bytes."""


def _read_body(raw: bytes) -> None:
    for chat in (True, False):
        ask({"body": raw.decode("latin-1"), "chat": chat})


def scaling(size: int = 20_000, of_a_body: int = 100_000) -> dict[str, Any]:
    """How much more a character costs in a hostile input ten times as long: the worst kind of each.

    Fails where that is more than `STEEPEST`, three times in a row.
    """
    texts = {kind: [hostile(kind, times * size) for times in (1, 10)] for kind in (*REPEATED, *ENDLESS)}
    bodies = {kind: [make(times * of_a_body) for times in (1, 10)] for kind, make in BODIES.items()}
    ratios = {
        "parse": steepest(parse, texts),
        "encode": steepest(tokenizer(SHIPPED)[0].encode, texts),
        "schema": steepest(_read_body, bodies),
    }
    return {"times as much for a character of an input ten times as long": ratios}


def steepest(work: Callable[[Any], object], inputs: dict[str, list[Any]]) -> float:
    """How many times as much a character of the longer of two inputs costs, for the worst kind of them."""
    found = list[float]()
    for kind, (short, long) in inputs.items():
        tries = (_ratio(work, short, long) for _ in range(3))  # the machine may have stood still
        found.append(next((ratio for ratio in tries if ratio <= STEEPEST), inf))
        assert found[-1] <= STEEPEST, f"{work}: a long input costs more than its share: {kind}"
    return max(found)


def _ratio(work: Callable[[Any], object], short: Any, long: Any) -> float:
    costs: list[float] = []
    for size in (short, long):
        times = list[float]()
        for _ in range(2):
            began = time.process_time()
            work(size)
            times.append(time.process_time() - began)
        costs.append(min(times) / len(size))
    return round(costs[1] / costs[0], 2)
