"""An SGLang server that wants a key."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pasta_async.errors import BackendError
from pasta_async.evals.engines import cold_backend


async def test_the_key_of_the_environment_is_sent_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str | None] = {}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked[self.path] = self.headers["authorization"]
            self.send_response(200 if self.path == "/flush_cache" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv("PASTA_API_KEY", "open-sesame")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        with pytest.raises(BackendError):  # it is no SGLang
            async with cold_backend(f"http://127.0.0.1:{http.server_port}"):
                pass
        http.shutdown()
    assert len(asked) > 1
    assert {*asked.values()} == {"Bearer open-sesame"}
