"""What the HTTP backend asks a server, or a router, first, and what may be wrong with what they are."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import odd_server
import pytest
from odd_server import END, HTML, STOP, TAGS, OddServer, backend, event, letters, pieces_of, sse, stream

from pasta_async import Client
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
    UnsupportedModelError,
)


@pytest.mark.parametrize(
    ("routes", "kind", "message"),
    [
        ({"/server_info": httpx.ConnectError("refused")}, BackendConnectError, ""),
        ({"/server_info": httpx.Response(404)}, BackendConnectError, ""),
        ({"/server_info": HTML}, BackendConnectError, ""),
        ({"/server_info": {"name": "ollama"}}, BackendConnectError, ""),
        ({"/server_info": [1]}, BackendConnectError, ""),
        ({"/server_info": {"version": "0.5.22.post1"}}, BackendConnectError, "0.5.22.post1"),
        ({"/server_info": httpx.Response(401, json={"error": "no"})}, BackendStatusError, "pass api_key="),
        ({"/server_info": httpx.Response(503, text="warming up")}, BackendStatusError, "503"),
        ({"/server_info": httpx.ReadTimeout("")}, BackendTimeoutError, ""),
        ({"/server_info": httpx.ReadError("reset")}, BackendTransportError, ""),
        ({"/v1/models": {"data": [7]}}, BackendProtocolError, "/v1/models"),
        ({"/workers": {"workers": [7]}}, BackendProtocolError, "/workers"),
        ({"/workers": {"workers": [{"is_healthy": False}]}}, BackendConnectError, ""),
        ({"/tokenize": {"tokens": []}}, BackendProtocolError, "/tokenize"),
        ({"/tokenize": {"tokens": [[1.5]]}}, BackendProtocolError, "/tokenize"),
        ({"/detokenize": {"text": [7]}}, BackendProtocolError, "/detokenize"),
        ({"/model_info": {"is_generation": False}}, UnsupportedModelError, ""),
        (
            {"/model_info": {"preferred_sampling_params": {"repetition_penalty": -1}}},
            BackendProtocolError,
            "preferred_sampling_params",
        ),
        ({"/v1/models": {"data": [{"id": "odd"}]}}, BackendProtocolError, "context length"),
        ({"/generate": {}}, BackendProtocolError, "Pass vocab_size="),
        ({"/tokenize": {"ids": []}}, BackendProtocolError, "/tokenize"),
        (
            {"/server_info": {"version": "0.6", "skip_tokenizer_init": True}},
            UnsupportedModelError,
            "--skip-tokenizer-init",
        ),
    ],
)
async def test_what_is_wrong_with_a_server_is_told(
    routes: dict[str, Any], kind: type[BackendError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        await backend(OddServer(routes)).connect()
    assert message in str(caught.value) and "http://odd" in str(caught.value)


@pytest.mark.parametrize("url", ["odd:30000", "ftp://odd", "http://", "http://odd?x=1", "http://odd:port"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        SGLangBackend(url)


async def test_many_that_connect_at_once_ask_once() -> None:
    server = OddServer()
    made = backend(server)
    infos = await asyncio.gather(*(made.connect() for _ in range(5)))
    assert len(server.sent("/server_info")) == 1 and all(info is infos[0] for info in infos)
    assert infos[0].vocab_size == odd_server.VOCABULARY
    assert infos[0].end_ids == (END,) and infos[0].tags == TAGS


async def test_a_cancelled_connect_can_be_repeated() -> None:
    asked = asyncio.Event()

    class Slow(OddServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if not asked.is_set():
                asked.set()
                await asyncio.Event().wait()
            return await super().handle_async_request(request)

    made = backend(Slow())
    first = asyncio.create_task(made.connect())
    await asked.wait()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled() and (await made.connect()).tags == TAGS


async def test_one_malformed_reply_at_the_start_ends_no_answer() -> None:
    replies = iter([HTML, {"version": "0.5.23", "incremental_streaming_output": True}])

    def about(_body: Any) -> Any:
        return next(replies)

    server = OddServer({"/server_info": about})
    server.decoding = [stream([sse([event([*letters("Hi"), END], 3, finish_reason=STOP)])])]
    async with Client(backend(server)) as client:
        assert (await client.generate("Greet me.")).text == "Hi"
    assert len(server.sent("/server_info")) == 2


async def test_a_worker_that_has_gone_is_not_asked_again() -> None:
    class Router(OddServer):
        """A router whose first worker is gone once `gone` is set."""

        gone = False

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            name = "second" if self.gone else "first"
            self.routes["/workers"] = {"workers": [{"url": f"http://{name}", "is_healthy": True}]}
            if self.gone and request.url.host == "first":
                self.log.append(("refused", None))
                raise httpx.ConnectError("refused")
            return await super().handle_async_request(request)

    router = Router()
    made = backend(router)
    await made.connect()
    router.gone = True
    with pytest.raises(BackendConnectError):  # one call sends one request: the client sends it again
        await made.encode("a")
    assert await made.encode("a") == letters("a")
    assert len(router.sent("refused")) == 1


async def test_a_path_and_a_key_go_with_every_request() -> None:
    server = OddServer()
    server.routes = {f"/llm/v1{path}": answer for path, answer in server.routes.items()}
    server.decoding = [stream([sse([event([END], 1, finish_reason=STOP)])])]
    made = SGLangBackend("http://odd/llm/v1/", api_key="secret", client=server.client())
    await pieces_of(made)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}


@pytest.mark.parametrize(("overlap", "penalty", "notes"), [(True, 1.1, 1), (False, 1.1, 0), (True, 1.0, 0)])
async def test_an_answer_notes_that_the_penalty_misses_tokens(
    overlap: bool, penalty: float, notes: int
) -> None:
    about = {"version": "0.5.23", "disable_overlap_schedule": not overlap}
    model = {"model_path": "odd", "preferred_sampling_params": {"repetition_penalty": penalty}}
    info = await backend(OddServer({"/server_info": about, "/model_info": model})).connect()
    assert len(info.notes) == notes
