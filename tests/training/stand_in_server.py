"""A server that is healthy at the second question, and tells its GPU: `stand_in_server.py MODEL PORT GPU`."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

model, port, gpu = sys.argv[1:]
asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked.append(self.path)
        self.send_response(200 if len(asked) > 1 else 503)
        self.end_headers()
        self.wfile.write(f"{model} on {gpu}".encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


if model == "broken":
    sys.exit(3)
HTTPServer(("127.0.0.1", int(port)), _Handler).serve_forever()
