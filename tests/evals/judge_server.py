"""A judge: an OpenAI-compatible server that is asked which of two answers is better, and never wavers."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Opinion = Callable[[str, str], float]
    """The probability that the first of two answers is the better one."""

    Trouble = Callable[["Judge", BaseHTTPRequestHandler], None]
    """Answers a request in some bad way."""

_OUTPUT = re.compile(r'"output": """(.*?)"""', re.DOTALL)


def prefers(better: set[str], probability: float = 1.0) -> Opinion:
    """An opinion that knows which answers are good."""
    return lambda first, _: probability if first in better else 1 - probability


def first_is_better(first: str, second: str) -> float:
    """An opinion about positions alone."""
    return 1.0


def no_trouble(number: int, text: str) -> None:
    """Nothing goes wrong."""


class Judge:
    """What the server does, to be changed while it runs."""

    def __init__(self, opinion: Opinion) -> None:
        self.opinion = opinion
        self.prefix: Callable[[int], str] = lambda number: ""
        """Stands before the names in a reply, as a space does with some tokenizers."""
        self.trouble: Callable[[int, str], Trouble | None] = no_trouble
        """What goes wrong with a request, by its number and its prompt."""
        self.closing = threading.Event()
        self.keys: list[str | None] = []
        self.asked = Counter[str]()
        """How often each prompt came."""
        self._lock = threading.Lock()

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        text = body["messages"][-1]["content"]
        with self._lock:
            number = self.asked.total()
            self.asked[text] += 1
            self.keys.append(handler.headers["authorization"])
        trouble = self.trouble(number, text)
        if trouble:
            trouble(self, handler)
        else:
            first, second = _OUTPUT.findall(text)
            send(handler, 200, _completion(body, self.opinion(first, second), self.prefix(number)))


def rate_limited(judge: Judge, handler: BaseHTTPRequestHandler) -> None:
    """Come again, at once."""
    send(handler, 429, {"error": {"message": "too many"}}, **{"Retry-After": "0.001"})


def failing(judge: Judge, handler: BaseHTTPRequestHandler) -> None:
    send(handler, 500, {"error": {"message": "broken"}}, **{"Retry-After": "0.001"})


def forbidding(judge: Judge, handler: BaseHTTPRequestHandler) -> None:
    send(handler, 401, {"error": {"message": "wrong key"}})


def silent(judge: Judge, handler: BaseHTTPRequestHandler) -> None:
    """No answer as long as the server runs."""
    judge.closing.wait()


def talkative(judge: Judge, handler: BaseHTTPRequestHandler) -> None:
    """An answer without log probabilities."""
    message = {"role": "assistant", "content": "Well"}
    send(
        handler, 200, {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": USAGE}
    )


def not_json(judge: Judge, handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, "<html>It works!</html>")


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def send(handler: BaseHTTPRequestHandler, status: int, body: Any, **headers: str) -> None:
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    handler.send_response(status)
    for name, value in {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **headers,
    }.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)


def _completion(body: dict[str, Any], first: float, prefix: str) -> dict[str, Any]:
    tops = [
        {"token": prefix + token, "logprob": math.log(p)}
        for token, p in sorted({"m": first, "M": 1 - first}.items(), key=lambda pair: -pair[1])
        if p > 0
    ]
    choice = {
        "index": 0,
        "finish_reason": "length",
        "message": {"role": "assistant", "content": tops[0]["token"]},
        "logprobs": {"content": [{**tops[0], "top_logprobs": tops}]},
    }
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
    return {**head, "choices": [choice], "usage": USAGE}


@contextmanager
def judging(opinion: Opinion) -> Generator[tuple[Judge, str]]:
    """Run a judge; the judge and its base URL."""
    judge = Judge(opinion)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            judge.respond(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield judge, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        judge.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
