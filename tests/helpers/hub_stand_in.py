"""The part of the Hugging Face hub's HTTP API that downloads one file."""

from __future__ import annotations

from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

import huggingface_hub.constants as constants
import pytest

from tests.helpers.stand_ins import SilentHandler, listening

UNREACHABLE = "http://127.0.0.1:1"


class Hub:
    """One large file at an address, which redirects to another host; what is asked of it is kept.

    Args:
        path: `/OWNER/NAME/resolve/main/FILE`.
        content: The file.
        sha256: Its hash, as the hub tells it before the download.
    """

    def __init__(self, path: str, content: bytes, sha256: str) -> None:
        self.path, self.content, self.sha256 = path, content, sha256
        self.breaks_at: int | None = None
        """Bytes of the first download after which the connection ends; others are refused then."""
        self.ranges: list[str | None] = []
        """The `Range` of each download."""
        self.tokens: dict[str, str | None] = {}
        """The authorization that each path was asked with."""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.tokens[request.path] = request.headers["Authorization"]
        if request.path == self.path:
            request.send_response(302)
            port = request.connection.getsockname()[1]
            request.send_header("Location", f"http://localhost:{port}/file")
            request.send_header("X-Repo-Commit", "c0ffee" * 6 + "c0ff")
            request.send_header("X-Linked-ETag", f'"{self.sha256}"')
            request.send_header("X-Linked-Size", str(len(self.content)))
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif request.path == "/file":
            self._send(request)
        else:
            request.send_error(404)

    def _send(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers["Range"]
        self.ranges.append(wanted)
        if self.breaks_at is not None and len(self.ranges) > 1:
            request.send_error(403)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        sent, size = self.content[start:], len(self.content)
        request.send_response(206 if wanted else 200)
        request.send_header("Content-Length", str(len(sent)))
        if wanted:
            request.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        request.end_headers()
        request.wfile.write(sent[: self.breaks_at])
        request.close_connection = self.breaks_at is not None


def serving(hub: Hub) -> AbstractContextManager[str]:
    """Run a server of the hub; its address."""

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        do_HEAD = do_GET

    return listening(Handler)


def use_hub(address: str, patched: pytest.MonkeyPatch) -> None:
    """Have `huggingface_hub` ask there."""
    patched.setattr(constants, "ENDPOINT", address)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    patched.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template)
    patched.setattr(constants, "HF_HUB_OFFLINE", False)
    patched.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is on the disk when a download breaks off
