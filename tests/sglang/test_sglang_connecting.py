"""The HTTP backend's handshake with a server or a router: tokenizers, proxies, event loops, errors."""

from __future__ import annotations

import asyncio
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import httpx
import huggingface_hub
import odd_server
import pytest
from odd_server import END, HTML, STOP, TAGS, OddServer, backend, encode, event, pieces_of, sse, stream

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
    InvalidStateError,
    UnsupportedModelError,
)
from pasta_async.training.endpoint import Endpoint, EndpointSettings
from tests.pasta_tiny import PASTA_TINY


@pytest.mark.parametrize(
    ("routes", "kind", "message"),
    [
        ({"/server_info": httpx.ConnectError("refused")}, BackendConnectError, ""),
        ({"/server_info": httpx.Response(404)}, BackendConnectError, ""),
        ({"/server_info": HTML}, BackendConnectError, ""),
        ({"/server_info": {"name": "ollama"}}, BackendConnectError, ""),
        ({"/server_info": {"version": "0.5.22.post1"}}, BackendConnectError, "0.5.22.post1"),
        ({"/server_info": httpx.Response(401, json={"error": "no"})}, BackendStatusError, "pass api_key="),
        ({"/server_info": httpx.Response(503, text="warming up")}, BackendStatusError, "503"),
        ({"/server_info": httpx.ReadTimeout("")}, BackendTimeoutError, ""),
        ({"/server_info": httpx.ReadError("reset")}, BackendTransportError, ""),
        ({"/v1/models": {"data": [7]}}, BackendProtocolError, "/v1/models"),
        ({"/v1/models": {"data": [{"id": "odd"}]}}, BackendProtocolError, "max_model_len"),
        ({"/workers": {"workers": [{"url": "http://w", "is_healthy": False}]}}, BackendConnectError, ""),
        ({"/tokenize": httpx.Response(500, text="oops")}, BackendStatusError, "/tokenize"),
        ({"/tokenize": {"tokens": [1, 2]}}, UnsupportedModelError, "pass tokenizer="),
        ({"/model_info": {"is_generation": False}}, UnsupportedModelError, ""),
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
    models = await asyncio.gather(*(made.connect() for _ in range(5)))
    assert len(server.sent("/server_info")) == 1 and all(model is models[0] for model in models)
    assert models[0].vocab_size == odd_server.VOCABULARY
    assert models[0].end_ids == (END,) and models[0].tags == TAGS


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


async def test_a_path_and_a_key_go_with_every_request() -> None:
    server = OddServer()
    server.routes = {f"/llm/v1{path}": answer for path, answer in server.routes.items()}
    server.decoding = [stream([sse([event([END], finish_reason=STOP)])])]
    made = SGLangBackend("http://odd/llm/v1/", api_key="secret", client=server.client())
    await pieces_of(made)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}


@pytest.mark.parametrize(("overlap", "penalty", "notes"), [(True, 1.1, 1), (False, 1.1, 0), (True, 1.0, 0)])
async def test_an_answer_notes_that_the_penalty_misses_tokens(
    overlap: bool, penalty: float, notes: int
) -> None:
    server = OddServer({"/server_info": {"version": "0.5.23", "disable_overlap_schedule": not overlap}})
    server.routes["/model_info"]["preferred_sampling_params"] = {"repetition_penalty": penalty}
    assert len((await backend(server).connect()).notes) == notes


# Where the tokenizer comes from ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True])
async def test_a_server_without_a_tokenizer_is_not_asked_for_one(given: bool) -> None:
    server = OddServer({"/server_info": {"version": "0.5.23", "skip_tokenizer_init": True}})
    made = backend(server, tokenizer=Path(odd_server.model_folder()) / "tokenizer.json" if given else None)
    assert (await made.connect()).tokenizer.encode("ab") == odd_server.encode("ab")
    assert not server.sent("/tokenize")


async def test_the_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="otherwise"):
        await backend(OddServer(), tokenizer=PASTA_TINY).connect()


async def test_a_server_whose_tokenize_is_out_of_reach_is_served_without_the_comparison() -> None:
    assert (await backend(OddServer({"/tokenize": httpx.Response(404)})).connect()).tags == TAGS


@pytest.mark.parametrize("named", ["by the option", "by the server"])
async def test_a_name_is_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    asked = list[tuple[str, str | None]]()

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert "tokenizer.json" in allow_patterns and "model.safetensors" not in allow_patterns
        return odd_server.model_folder()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    server = OddServer()
    server.routes["/server_info"]["revision"] = "v2"
    if named == "by the server":
        server.routes["/model_info"] = {"model_path": "acme/model"}
    await backend(server, tokenizer="acme/model" if named == "by the option" else None).connect()
    assert asked == [("acme/model", None if named == "by the option" else "v2")]


@pytest.mark.parametrize("path", ["/nowhere/model", "acme/model"])
async def test_without_a_tokenizer_the_ways_to_one_are_told(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModelError, match=r"tokenizer=.*this machine.*hub") as caught:
        await backend(OddServer({"/model_info": {"model_path": path}})).connect()
    assert path in str(caught.value)


async def test_a_folder_without_a_tokenizer_tells_the_ways_to_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json is missing.*tokenizer=.*hub"):
        await backend(OddServer({"/model_info": {"model_path": str(tmp_path)}})).connect()


async def test_a_folder_of_the_server_that_may_not_be_looked_into_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stat = os.stat

    def forbidden(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith("/secret"):
            raise PermissionError(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", forbidden)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModelError, match="/secret/model"):
        await backend(OddServer({"/model_info": {"model_path": "/secret/model"}})).connect()


async def test_an_end_that_the_tokenizer_does_not_know_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(
        (Path(odd_server.model_folder()) / "tokenizer.json").read_bytes()
    )
    server = OddServer()
    server.decoding = [stream([sse([event([*odd_server.encode("a"), END], finish_reason=STOP)])])]
    made = backend(server, tokenizer=tmp_path)
    assert (await made.connect()).end_ids == ()
    [piece] = await pieces_of(made)
    assert (piece.ids, piece.finish_reason) == (tuple(odd_server.encode("a")), "stop")


# A router ---------------------------------------------------------------------------------------------------


async def test_a_worker_that_has_gone_is_asked_no_more() -> None:
    loads = {"num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 4, "token_usage": 0.0}

    class Router(OddServer):
        """A router whose first worker is gone once `gone` is set."""

        gone = False

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            name = "second" if self.gone else "first"
            self.routes["/workers"] = {"workers": [{"url": f"http://{name}/", "is_healthy": True}]}
            if self.gone and request.url.host == "first":
                self.log.append(("refused", None))
                raise httpx.ConnectError("refused")
            return await super().handle_async_request(request)

    router = Router({"/v1/loads": {"loads": [loads]}})
    made = backend(router)
    await made.connect()
    router.gone = True
    with pytest.raises(BackendConnectError):
        await made.load()
    router.decoding = [stream([sse([event([END], finish_reason=STOP)])])]
    await pieces_of(made)
    assert len(router.sent("refused")) == 1 and len(router.sent("/server_info")) == 2


# Proxies and event loops ------------------------------------------------------------------------------------

BAD_PROXIES = {
    "ALL_PROXY": "garbage://x",
    "all_proxy": "socks5://127.0.0.1:1080",
    "HTTP_PROXY": "ftp://127.0.0.1:1",
    "NO_PROXY": "[::1]",
}


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all", "http", "https", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("name", BAD_PROXIES)
def test_proxy_settings_that_cannot_be_used_are_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, BAD_PROXIES[name])
    if name == "NO_PROXY":
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(InvalidRequestError, match=name):
        SGLangBackend("http://odd:30000")
    with pytest.raises(InvalidRequestError, match=name):
        Endpoint("http://odd:30000/v1", "a model", EndpointSettings())
    for url in ("http://127.0.0.1:30000", "http://localhost:30000", "http://[::1]:30000"):
        assert SGLangBackend(url).url == url  # a server on this machine needs no proxy


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_is_named_in_errors_and_not_asked_for_loopback(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    asked = list[bytes]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", unused_tcp_port)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_tcp_port}")
    async with proxy:
        for url, told in (("http://odd:30000", True), ("http://127.0.0.1:1", False)):
            made = SGLangBackend(url, api_key="secret")
            with pytest.raises(BackendError) as caught:
                await made.connect()
            assert ("HTTP_PROXY" in str(caught.value)) is told
            await made.aclose()
    assert len(asked) == 2 and all(b"http://odd:30000/" in request for request in asked)


class _Handler(BaseHTTPRequestHandler):
    """The odd server on a real socket; each answer is the same text."""

    protocol_version = "HTTP/1.1"
    routes: ClassVar[dict[str, Any]] = OddServer().routes

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        kind = "application/json"
        if path == "/generate":
            kind = "text/event-stream"
            content = sse([event(encode("Tea.")), event([END], finish_reason=STOP)])
        else:
            route = self.routes.get(path)
            content = b"" if path not in self.routes else json.dumps(_called(route, body)).encode()
        self.send_response(200 if content else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _called(route: Any, body: Any) -> Any:
    return route(body) if callable(route) else route


def test_a_client_serves_in_one_event_loop_after_another() -> None:
    async def stream_one() -> str:
        async with client.stream([1]) as answer:
            return (await answer.result()).text

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        client = Client(url)
        for _ in range(2):
            assert asyncio.run(client.generate([1])).text == "Tea."
            assert asyncio.run(stream_one()) == "Tea."
        asyncio.run(client.aclose())
        asyncio.run(Client(url).aclose())  # one that was never used
        server.shutdown()


def test_an_httpx_client_of_another_event_loop_is_refused() -> None:
    server = OddServer()
    made = backend(server)
    server.decoding = [stream([sse([event([END], finish_reason=STOP)])]) for _ in range(2)]
    asyncio.run(_read(made))
    with pytest.raises(InvalidStateError, match="event loop"):
        asyncio.run(_read(made))


async def _read(made: SGLangBackend) -> None:
    await pieces_of(made)
