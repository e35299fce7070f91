"""OpenAI-compatible servers of chat completions, and one that is asked which of two answers is better."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.helpers.stand_ins import SilentHandler, listening

Trouble = Callable[["ChatServer", BaseHTTPRequestHandler], None]
"""Answers a request in some bad way."""

Opinion = Callable[[str, str], float]
"""The probability that the first of two answers is the better one."""

_OUTPUT = re.compile(r'"output": """(.*?)"""', re.DOTALL)


class ChatServer:
    """A server, each request of which comes to `answer` in a thread of its own."""

    def __init__(self) -> None:
        self.url = ""
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def answer(self, messages: list[dict[str, str]], handler: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        raise NotImplementedError


def complete(handler: BaseHTTPRequestHandler, text: str, finish_reason: str = "stop", **choice: Any) -> None:
    """Send a completion; `choice` are further fields of it."""
    message = {"role": "assistant", "content": text}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "test"}
    choices = [{"index": 0, "finish_reason": finish_reason, "message": message, **choice}]
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    send(handler, 200, {**head, "choices": choices, "usage": usage})


def failing(server: ChatServer, handler: BaseHTTPRequestHandler) -> None:
    send(handler, 500, {"error": {"message": "broken"}})


def forbidding(server: ChatServer, handler: BaseHTTPRequestHandler) -> None:
    send(handler, 401, {"error": {"message": "wrong key"}})


def silent(server: ChatServer, handler: BaseHTTPRequestHandler) -> None:
    """No answer as long as the server runs."""
    server.closing.wait()


def talkative(server: ChatServer, handler: BaseHTTPRequestHandler) -> None:
    """An answer without log probabilities."""
    complete(handler, "Well")


def not_json(server: ChatServer, handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, "<html>It works!</html>")


def without_choices(server: ChatServer, handler: BaseHTTPRequestHandler) -> None:
    """An error whose status says that all is well."""
    send(handler, 200, {"error": {"message": "overloaded"}})


def send(handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    """Send a body, text or JSON. Whoever tries again may do so at once."""
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    handler.send_response(status)
    for name, value in {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Retry-After": "0.001",
    }.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def serving(chat: ChatServer) -> Generator[None]:
    """Run a server, whose `url` is then known."""

    class Handler(SilentHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            chat.answer(body["messages"], self)

    with listening(Handler) as address:
        chat.url = f"{address}/v1"
        try:
            yield
        finally:
            chat.closing.set()


# --- a judge that never wavers


class Judge(ChatServer):
    """Says by its opinion which of two answers is better."""

    def __init__(self, opinion: Opinion) -> None:
        super().__init__()
        self.opinion = opinion
        self.trouble: Callable[[int, str], Trouble | None] = lambda _number, _text: None
        """The trouble that a request has, by its number and its prompt."""
        self.asked = Counter[str]()
        """The number of times that each prompt came."""

    def answer(self, messages: list[dict[str, str]], handler: BaseHTTPRequestHandler) -> None:
        text = messages[-1]["content"]
        with self.lock:
            number = self.asked.total()
            self.asked[text] += 1
        if trouble := self.trouble(number, text):
            trouble(self, handler)
            return
        first, second = _OUTPUT.findall(text)
        likely = self.opinion(first, second)
        tops = [
            {"token": token, "logprob": math.log(chance)}
            for token, chance in sorted({"m": likely, "M": 1 - likely}.items(), key=lambda pair: -pair[1])
            if chance > 0
        ]
        logprobs = {"content": [{**tops[0], "top_logprobs": tops}]}
        complete(handler, str(tops[0]["token"]), "length", logprobs=logprobs)


@contextmanager
def judging(opinion: Opinion) -> Generator[tuple[Judge, str]]:
    """Run a judge; the judge and its base URL."""
    judge = Judge(opinion)
    with serving(judge):
        yield judge, judge.url
