"""Backends decode tokens: SGLang, vLLM, the embedded engine, a script.

`open_backend` makes one from a URL-like string. Each class lives in a module of its own, which is imported
when it is opened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Unpack, cast

from pasta_async.backends.options import (
    BackendOptions,
    EngineOptions,
    LaunchOptions,
    ServerOptions,
    VLLMOptions,
)
from pasta_async.engine_load import EngineLoad
from pasta_async.errors import InvalidRequestError
from pasta_async.protocol import Backend, DecodeRequest, Model, Piece

_OPTIONS = {
    "local": EngineOptions.__optional_keys__,
    "http": ServerOptions.__optional_keys__,
    "vllm": VLLMOptions.__optional_keys__,
    "sglang": LaunchOptions.__optional_keys__,
}

_FORMS = """  local:                  the embedded engine with pasta-qwen, else pasta-smol: see `pull`
  local:qwen-1.5b         a model that ships by name: pasta-qwen, pasta-smol, qwen-1.5b, qwen-0.5b
  local:/path/to/model    the embedded engine with a folder (of a model, of an adapter) or a GGUF file
  http://host:30000       an SGLang server (https as well)
  vllm:http://host:8000   a vLLM server
  sglang:/path/to/model   an SGLang server that this program starts and ends"""


def open_backend(url: str, **options: Unpack[BackendOptions]) -> Backend:
    """Make a backend from a URL-like string.

    Nothing is loaded or reached before its `connect`, which says what to install if need be.

    Args:
        url: ``local:``, ``local:qwen-1.5b``, ``local:/path``, ``http://host:port`` (or https),
            ``vllm:http://host:port``, ``sglang:/path``.
        options: Those of the backend's class; see `BackendOptions`.

    Raises:
        InvalidRequestError: The string has none of these forms (the message lists them), or an option is
            not for this backend.
    """
    kind, rest = _kind(url)
    if unknown := sorted(options.keys() - _OPTIONS[kind]):
        raise InvalidRequestError(
            f"{url} does not take {', '.join(unknown)}; its options are {', '.join(sorted(_OPTIONS[kind]))}"
        )
    given = cast("dict[str, Any]", options)  # which class has which is checked
    if kind == "local":
        from pasta_async.backends.local import LocalBackend

        return LocalBackend(rest or None, **given)
    if kind == "vllm":
        from pasta_async.backends.vllm import VLLMBackend

        return VLLMBackend(rest, **given)
    from pasta_async.backends.sglang import LaunchedBackend, SGLangBackend

    return SGLangBackend(url, **given) if kind == "http" else LaunchedBackend(rest, **given)


def _kind(url: str) -> tuple[str, str]:
    """The kind of backend that a string names, and the part behind the colon."""
    scheme, _, rest = url.partition(":")
    kind = "http" if scheme == "https" else scheme
    fits = {  # true if the rest has the form that the scheme needs
        "local": True,
        "http": rest.startswith("//") and rest.strip("/") != "",
        "vllm": rest.startswith(("http:", "https:")),
        "sglang": rest != "",
    }
    if not fits.get(kind):
        raise InvalidRequestError(f"{url!r} names no backend. The forms are:\n{_FORMS}")
    return kind, rest


class WrappingBackend:
    """A backend that leaves all of `Backend` to another one; subclasses change a part.

    Each method calls that of the inner backend, whose errors and cancellation are its own.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner: Backend = inner

    async def connect(self) -> Model:
        """See `pasta_async.protocol.Backend`."""
        return await self.inner.connect()

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """See `pasta_async.protocol.Backend`."""
        return self.inner.decode(request)

    async def load(self) -> EngineLoad | None:
        """See `pasta_async.protocol.Backend`."""
        return await self.inner.load()

    async def aclose(self) -> None:
        """Close the inner backend."""
        await self.inner.aclose()
