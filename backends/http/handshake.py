"""The handshake with a server: its version, and the tokenizer of its model, which has to be the right one."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
from pydantic import BaseModel

from pasta_async.backends.http.client import HTTPClient
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    UnsupportedModelError,
)
from pasta_async.tokenizer import Tokenizer

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "config.json"),
)
"""Files of a model that its tokenizer is made of."""

SAMPLE = "Two wars (1914-1918, 1939-1945):\n  1. causes,\n  2. outcome; na\u00efve, \u6f22\u5b57 \U0001f389."
"""A text that different tokenizers hardly ever encode to the same ids."""

_UNKNOWN = (404, 405)
"""HTTP statuses of a server that does not have an endpoint."""

_WAYS = (
    "Pass tokenizer=, or set PASTA_TOKENIZER: a folder, a tokenizer.json or a name on the hub. Or have the "
    "server's model folder on this machine, or start the server by a name on the hub (HF_TOKEN opens gated "
    "models)"
)


class _Ids(BaseModel):
    tokens: list[int]


async def find_tokenizer(
    http: HTTPClient, server: str, source: str | Path, *, revision: str | None = None, compare: bool = True
) -> Tokenizer:
    """The tokenizer of a server's model. A cancellation does not wait for the thread that loads it.

    Args:
        http: The connections.
        server: Base URL of the server.
        source: A folder, a `tokenizer.json`, or a name on the hub.
        revision: Revision of the model on the hub; None: the latest.
        compare: Have the server encode `SAMPLE` as well: the ids must be the same.

    Raises:
        UnsupportedModelError: There is none, or the server has another one.
        BackendError: The server failed.
    """
    load = partial(_load, source, server, revision)
    tokenizer = await anyio.to_thread.run_sync(load, abandon_on_cancel=True)
    if compare:
        await _compare(http, server, tokenizer, source)
    return tokenizer


async def _compare(http: HTTPClient, server: str, tokenizer: Tokenizer, source: str | Path) -> None:
    """Refuse a tokenizer that gives `SAMPLE` other ids than the server does, if that has `/tokenize`."""
    body = {"prompt": SAMPLE, "add_special_tokens": False}
    try:
        ids = await http.ask(_Ids, f"{server}/tokenize", body)
    except BackendStatusError as error:
        if error.status in _UNKNOWN:  # a proxy in front of the server passes on only some endpoints
            return
        raise
    if ids.tokens != tokenizer.encode_unguarded(SAMPLE):
        raise UnsupportedModelError(
            f"{server} encodes text otherwise than the tokenizer at {source}: pass tokenizer= with that "
            "of the model that it serves"
        )


def _load(source: str | Path, server: str, revision: str | None) -> Tokenizer:
    """A tokenizer from a folder, a `tokenizer.json`, or the hub."""
    if source and os.path.exists(source):  # `Path.exists` raises where it may not look
        try:
            return Tokenizer.from_folder(source)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{error}. {_WAYS}") from error
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    hub: Any = huggingface_hub
    try:
        folder = hub.snapshot_download(str(source), revision=revision, allow_patterns=[*TOKENIZER_FILES])
    except (HfHubHTTPError, httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        raise UnsupportedModelError(
            f"there is no tokenizer for {server}: {source!r} is no folder here, nor on the hub ({error}). "
            + _WAYS
        ) from error
    return Tokenizer.from_folder(folder)


@contextmanager
def expecting(kind: str, server: str) -> Generator[None]:
    """Requests that every server of a kind answers. `kind` stands with its article: "a vLLM".

    Raises:
        BackendConnectError: The server does not know them, or answers in another form.
    """
    try:
        yield
    except (BackendStatusError, BackendProtocolError) as error:
        if isinstance(error, BackendStatusError) and error.status not in _UNKNOWN:
            raise
        raise _unusable(f"{server} is not {kind} server: {error}. Is the URL right?") from error


def check_version(server: str, kind: str, version: str, minimum: str, package: str) -> None:
    """Refuse a server that is too old, with `BackendConnectError`."""
    if _numbers(version) < _numbers(minimum):
        raise _unusable(
            f"{server} runs {kind} {version}; pasta_async needs {minimum} or newer (pip install -U {package})"
        )


def _unusable(message: str) -> BackendConnectError:
    """A connect error that is not retried: asked again, the server would be the same."""
    error = BackendConnectError(message)
    error.retryable = False
    return error


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: 0.5.23.post1 counts as 0.5.23, and so does its release candidate."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
