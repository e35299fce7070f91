"""A server that says what a test tells it to, behind httpx's transport interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx

from pasta_async.backends.sglang import SGLangBackend
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Piece

SPECIALS = ("</s>", "<|end|>", *TAG_TOKENS)
END = 0
TAGS = tuple(range(2, 8))
STOP = {"type": "stop", "matched": END}
HTML = httpx.Response(200, html="<html>Welcome</html>")
FIRST_LETTER = 10
VOCABULARY = FIRST_LETTER + 0x110000

Answer = Any
"""Of a route: JSON to send, a response, an exception to raise, or a function of the request's JSON."""


def encode(text: str) -> list[int]:
    """One id for a character, or for a special token."""
    ids: list[int] = []
    while text:
        special = next((token for token in SPECIALS if text.startswith(token)), None)
        ids.append(SPECIALS.index(special) if special else FIRST_LETTER + ord(text[0]))
        text = text[len(special or "x") :]
    return ids


def letters(text: str) -> list[int]:
    """Ids of characters, also where they spell a special token."""
    return [FIRST_LETTER + ord(letter) for letter in text]


def decode(ids: Iterable[int], *, skip: bool = False) -> str:
    """The text of ids."""
    return "".join(_token(i, skip) for i in ids)


def _token(i: int, skip: bool) -> str:
    if i >= FIRST_LETTER:
        return chr(i - FIRST_LETTER)
    return "" if skip else SPECIALS[i]


def event(
    ids: Sequence[int], done: int, *, text: str | None = None, finish_reason: Any = None
) -> dict[str, Any]:
    """An event of `/generate`."""
    return {
        "text": decode(ids) if text is None else text,
        "output_ids": list(ids),
        "meta_info": {
            "finish_reason": finish_reason,
            "prompt_tokens": 3,
            "cached_tokens": 1,
            "completion_tokens": done,
        },
    }


def sse(events: Iterable[dict[str, Any]], *, done: bool = True) -> bytes:
    """Events as SGLang writes them."""
    frames = [f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in events]
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


class OddServer(httpx.AsyncBaseTransport):
    """Answers as SGLang 0.5.23 does, but for the routes given."""

    def __init__(self, routes: dict[str, Answer] | None = None) -> None:
        self.routes: dict[str, Answer] = {**self._usual(), **(routes or {})}
        self.log: list[tuple[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.decoding: list[Answer] = []
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
        if request.url.path not in self.routes:
            return httpx.Response(404, json={"detail": "Not Found"})
        return _respond(self.routes[request.url.path], body)

    def _usual(self) -> dict[str, Answer]:
        return {
            "/server_info": {"version": "0.5.23", "incremental_streaming_output": True},
            "/model_info": {"model_path": "odd", "is_generation": True},
            "/v1/models": {"data": [{"id": "odd", "max_model_len": 100}]},
            "/tokenize": _tokenize,
            "/detokenize": _detokenize,
            "/abort_request": httpx.Response(200),
            "/generate": self._generate,
        }

    def _generate(self, body: Any) -> Answer:
        if "rid" in body:
            return self.decoding.pop(0)
        if isinstance(body["input_ids"][0], list):
            return list(map(_biased, body["sampling_params"]))
        message = f"logit_bias must has keys in [0, {VOCABULARY - 1}], got 2147483647."
        return httpx.Response(400, json={"error": {"message": message}})


def _biased(params: dict[str, Any]) -> dict[str, Any]:
    [i] = map(int, params["logit_bias"])
    ended = {"type": "stop", "matched": i} if i == END else {"type": "length", "length": 2}
    return {"meta_info": {"finish_reason": ended}}


def _tokenize(body: Any) -> Any:
    if "messages" in body:
        text = "".join(f"{m['role']}:{m['content']}<|end|>" for m in body["messages"])
        return {"tokens": encode(text)}
    return {"tokens": [encode(text) for text in body["prompt"]]}


def _detokenize(body: Any) -> Any:
    return {"text": [decode(ids, skip=body["skip_special_tokens"]) for ids in body["tokens"]]}


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


async def pieces_of(made: SGLangBackend, **fields: Any) -> list[Piece]:
    """What is decoded for a request with these fields."""
    fields = {
        "answer": "a",
        "thread": 0,
        "ids": (11, 12, 13),
        "max_tokens": 50,
        "sampling": Sampling(),
        **fields,
    }
    return [piece async for piece in made.decode(DecodeRequest(**fields))]
