"""A server that says what a test tells it to, behind httpx's transport interface."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import httpx

from pasta_async.backends.http.backend import ServerBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Piece
from tests.pasta_tiny import PASTA_TINY

_tokenizers: Any = importlib.import_module("tokenizers")  # without types of its own
TOKENIZER = _tokenizers.Tokenizer.from_file(str(PASTA_TINY / "tokenizer.json"))
VOCABULARY: int = TOKENIZER.get_vocab_size()
END: int = TOKENIZER.token_to_id("<|end|>")
TAGS: tuple[int, ...] = tuple(map(TOKENIZER.token_to_id, TAG_TOKENS))
A, B = 100, 101
"""Ids of pieces of words."""
STOP = {"type": "stop", "matched": END}
HTML = httpx.Response(200, html="<html>Welcome</html>")
ABOUT: dict[str, Any] = {
    "version": "0.5.23",
    "max_req_input_len": 100,
}
"""The server's description of itself."""

Answer = Any
"""A route's JSON to send, a response, an exception to raise, or a function of the request's JSON."""


def event(ids: Sequence[int], *, before: int = 0, finish_reason: Any = None) -> dict[str, Any]:
    """An event of `/generate`, behind `before` tokens; its text is nothing that anybody reads."""
    meta = {"prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": before + len(ids)}
    return {
        "text": "not read",
        "output_ids": list(ids),
        "meta_info": {"finish_reason": finish_reason, **meta},
    }


def sse(events: Iterable[dict[str, Any]], *, done: bool = True) -> bytes:
    """Events as SGLang writes them."""
    frames = [f"data: {json.dumps(entry, ensure_ascii=False)}\n\n" for entry in events]
    return "".join([*frames, "data: [DONE]\n\n"] if done else frames).encode()


def stream(chunks: Iterable[bytes] | httpx.AsyncByteStream) -> httpx.Response:
    """A response with an event stream, cut into these chunks."""
    content = chunks if isinstance(chunks, httpx.AsyncByteStream) else _Chunks(chunks)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=content)


class _Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def good() -> httpx.Response:
    """A reply of SGLang's: two tokens, the second the end."""
    return stream([sse([event([A, END], finish_reason=STOP)])])


class OddServer(httpx.AsyncBaseTransport):
    """Answers as SGLang 0.5.23 does, but for the routes given."""

    def __init__(self, routes: dict[str, Answer] | None = None, *, decoding: Sequence[Answer] = ()) -> None:
        self.routes: dict[str, Answer] = {**self._usual(), **(routes or {})}
        self.log: list[tuple[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.timeouts: list[dict[str, float | None]] = []
        self.decoding: list[Answer] = [*decoding]
        """Answers to the requests that decode, one after another."""

    def client(self) -> httpx.AsyncClient:
        """A client that talks to this server."""
        return httpx.AsyncClient(transport=self)

    def sent(self, path: str) -> list[Any]:
        """JSON of the requests for a path."""
        return [body for where, body in self.log if where == path]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        body = json.loads(content) if content else None
        self.log.append((request.url.path, body))
        self.headers.append(request.headers)
        self.timeouts.append(request.extensions["timeout"])
        if request.url.path not in self.routes:
            return httpx.Response(404, json={"detail": "Not Found"})
        return _respond(self.routes[request.url.path], body)

    def _usual(self) -> dict[str, Answer]:
        return {
            "/server_info": {**ABOUT},
            "/model_info": {"model_path": str(PASTA_TINY), "served_model_name": "odd", "is_generation": True},
            "/tokenize": _tokenize,
            "/abort_request": httpx.Response(200),
            "/generate": self._generate,
        }

    def _generate(self, _: Any) -> Answer:
        return self.decoding.pop(0)


def _tokenize(body: Any) -> Answer:
    return {"tokens": TOKENIZER.encode(body["prompt"]).ids}


def _respond(answer: Answer, body: Any) -> httpx.Response:
    if callable(answer):
        answer = answer(body)
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, httpx.Response):
        return answer
    return httpx.Response(200, json=answer)


def backend(server: OddServer, **options: Any) -> SGLangBackend:
    """A backend for this server."""
    return SGLangBackend("http://odd", client=server.client(), **options)


async def pieces_of(engine: ServerBackend, **fields: Any) -> list[Piece]:
    """The pieces that are decoded for a request with these fields."""
    request = replace(DecodeRequest("a", 0, (11, 12, 13), 50, Sampling()), **fields)
    return [piece async for piece in engine.decode(request)]
