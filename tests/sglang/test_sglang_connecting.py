"""The handshake with an SGLang server or a router: the tokenizer, and errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest

from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    UnsupportedModelError,
)
from tests.helpers import local_models, odd_server
from tests.helpers.odd_server import ABOUT, END, HTML, TAGS, A, OddServer, backend, good, pieces_of
from tests.helpers.stand_ins import SilentHandler, listening
from tests.pasta_tiny import PASTA_TINY


@pytest.mark.parametrize(
    ("routes", "kind", "message"),
    [
        ({"/server_info": httpx.ConnectError("refused")}, BackendConnectError, ""),
        ({"/server_info": HTML}, BackendError, "no SGLang server"),
        ({"/server_info": {"name": "ollama"}}, BackendError, "no SGLang server"),
        ({"/server_info": ABOUT | {"version": "0.5.22.post1"}}, BackendError, "0.5.22.post1"),
        ({"/server_info": httpx.Response(401, json={"error": "no"})}, BackendStatusError, "pass api_key="),
        ({"/model_info": HTML}, BackendProtocolError, "/model_info"),
        ({"/workers": {"workers": [{"url": "http://w", "is_healthy": False}]}}, BackendConnectError, ""),
        ({"/tokenize": {"tokens": [1, 2]}}, UnsupportedModelError, "pass tokenizer="),
        ({"/model_info": {"model_path": "x", "is_generation": False}}, UnsupportedModelError, ""),
    ],
)
async def test_what_is_wrong_with_a_server_is_told(
    routes: dict[str, Any], kind: type[BackendError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        await backend(OddServer(routes)).connect()
    assert message in str(caught.value) and "http://odd" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["odd:30000", "ftp://odd", "http://", "http://odd:port", "http://me:secret@odd"]
)
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SGLangBackend(url)
    assert "secret" not in str(caught.value)


async def test_a_time_limit_is_that_of_a_token_and_no_other() -> None:
    server = OddServer(decoding=[good()])
    engine = backend(server, timeout=600.0)
    await engine.connect()
    await pieces_of(engine)
    assert server.timeouts[0]["read"] == 30 and server.timeouts[-1]["read"] == 600
    assert all(waits["connect"] == 10 for waits in server.timeouts)


class Listening(SilentHandler):
    """Counts those who ask; sends them on to `location`, if there is one."""

    location = ""
    asked = 0

    def do_GET(self) -> None:
        """Send the request on, or reply with nothing."""
        type(self).asked += 1
        self.send_response(307 if self.location else 200)
        self.send_header("Location", self.location)
        self.send_header("Content-Length", "0")
        self.end_headers()


async def test_a_key_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Listening):
        pass

    class Here(Listening):
        pass

    with listening(Elsewhere) as elsewhere, listening(Here) as here:
        Here.location = f"{elsewhere}/server_info"
        monkeypatch.setenv("HTTP_PROXY", elsewhere)
        engine = SGLangBackend(here, api_key="secret")
        with pytest.raises(BackendError):
            await engine.connect()
        await engine.aclose()
    assert Here.asked and not Elsewhere.asked


async def test_many_that_connect_at_once_ask_once() -> None:
    server = OddServer()
    engine = backend(server)
    models = await asyncio.gather(*(engine.connect() for _ in range(5)))
    assert len(server.sent("/server_info")) == 1 and all(model is models[0] for model in models)
    assert models[0].vocab_size == odd_server.VOCABULARY
    assert models[0].end_ids == (END,) and models[0].tags == TAGS


async def test_a_path_and_a_key_go_with_every_request() -> None:
    server = OddServer(decoding=[good()])
    server.routes = {f"/llm/v1{path}": answer for path, answer in server.routes.items()}
    client = server.client()
    engine = SGLangBackend("http://odd/llm/v1/", api_key="secret", client=client)
    await pieces_of(engine)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}
    await engine.aclose()
    assert not client.is_closed  # it is the caller's


@pytest.mark.parametrize(("overlap", "penalty", "notes"), [(True, 1.1, 1), (False, 1.1, 0), (True, 1.0, 0)])
async def test_an_answer_notes_that_the_penalty_misses_tokens(
    overlap: bool, penalty: float, notes: int
) -> None:
    server = OddServer({"/server_info": ABOUT | {"disable_overlap_schedule": not overlap}})
    server.routes["/model_info"]["preferred_sampling_params"] = {"repetition_penalty": penalty}
    assert len((await backend(server).connect()).notes) == notes


# Where the tokenizer comes from ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True])
async def test_a_server_without_a_tokenizer_is_not_asked_for_one(given: bool) -> None:
    server = OddServer({"/server_info": ABOUT | {"skip_tokenizer_init": True}})
    engine = backend(server, tokenizer=PASTA_TINY / "tokenizer.json" if given else None)
    assert (await engine.connect()).tokenizer.encode("ab") == odd_server.TOKENIZER.encode("ab").ids
    assert not server.sent("/tokenize")


async def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    another: Any = local_models.byte_level()
    another.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="otherwise"):
        await backend(OddServer(), tokenizer=tmp_path).connect()


async def test_a_server_whose_tokenize_is_out_of_reach_is_served_without_the_comparison() -> None:
    assert (await backend(OddServer({"/tokenize": httpx.Response(404)})).connect()).tags == TAGS


@pytest.mark.parametrize("named", ["by the option", "by the server"])
async def test_a_name_is_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    downloads = list[tuple[str, str | None]]()

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        downloads.append((name, revision))
        assert "tokenizer.json" in allow_patterns and "model.safetensors" not in allow_patterns
        return str(PASTA_TINY)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    server = OddServer()
    server.routes["/server_info"]["revision"] = "v2"
    if named == "by the server":
        server.routes["/model_info"] = {"model_path": "acme/model"}
    await backend(server, tokenizer="acme/model" if named == "by the option" else None).connect()
    assert downloads == [("acme/model", None if named == "by the option" else "v2")]


@pytest.mark.parametrize("path", ["/nowhere/model", "acme/model"])
async def test_without_a_tokenizer_the_ways_to_one_are_told(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModelError, match=r"tokenizer=.*this machine.*hub") as caught:
        await backend(OddServer({"/model_info": {"model_path": path}})).connect()
    assert path in str(caught.value)


async def test_an_end_that_the_tokenizer_does_not_know_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((PASTA_TINY / "tokenizer.json").read_bytes())
    server = OddServer(decoding=[good()])
    engine = backend(server, tokenizer=tmp_path)
    assert (await engine.connect()).end_ids == ()
    [piece] = await pieces_of(engine)
    assert (piece.ids, piece.finish_reason) == ((A,), "stop")
