"""Backends decode tokens: SGLang, vLLM, the embedded engine, a script.

`open_backend` makes one from a URL-like string. Each class lives in a module of its own, which is imported
when it is opened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from pasta_async.backends.options import EngineOptions
from pasta_async.errors import InvalidRequestError
from pasta_async.load import EngineLoad
from pasta_async.protocol import Backend, DecodeRequest, Model, Piece

if TYPE_CHECKING:
    import httpx


class BackendOptions(EngineOptions, total=False):
    """Options of the backends that a URL names. A backend refuses an option that it does not have."""

    api_key: str | None
    """`http:` and `vllm:`: sent as a bearer token."""
    timeout: httpx.Timeout | float
    """`http:` and `vllm:`: seconds; its `read` is the longest wait for a token, queues included."""
    tokenizer: str | Path | None
    """`http:` and `vllm:`: the model's tokenizer, as a folder, a `tokenizer.json` or a name on the hub; None:
    that of the model that the server loaded, if it is on this machine or on the hub."""
    model: str | None
    """`vllm:`: the model to ask, a LoRA adapter for instance; None: the one that it serves."""
    server_args: Mapping[str, Any]
    """`sglang:`: further options of SGLang's server."""


_OPTIONS = {
    "local": EngineOptions.__optional_keys__,
    "http": {"api_key", "timeout", "tokenizer"},
    "vllm": {"api_key", "timeout", "tokenizer", "model"},
    "sglang": {"device", "server_args"},
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
    given = cast("dict[str, Any]", options)
    if kind == "local":
        from pasta_async.backends.local import LocalBackend

        return LocalBackend(rest or None, **given)
    if kind == "vllm":
        from pasta_async.backends.vllm import VLLMBackend

        return VLLMBackend(rest, **given)
    from pasta_async.backends.sglang import LaunchedBackend, SGLangBackend

    if kind == "http":
        return SGLangBackend(url, **given)
    arguments = {"device": given.get("device"), **_server_args(url, given.get("server_args", {}))}
    if arguments["device"] not in (None, "cpu", "cuda"):
        raise InvalidRequestError(f"{url}: device is cpu or cuda, not {arguments['device']!r}")
    return LaunchedBackend(rest, **arguments)


_REACHED_BY = {"host", "port", "model_path", "api_key", "admin_api_key"}
"""Options that `sglang:` sets itself: it needs them to reach the server that it started."""


def _server_args(url: str, value: object) -> Mapping[str, Any]:
    """The options for SGLang's server, by their names in Python; InvalidRequestError for a bad one."""
    names: set[object] = {*value} if isinstance(value, Mapping) else {None}
    if not all(isinstance(name, str) for name in names) or names & {"self", "path"}:
        raise InvalidRequestError(f"{url}: server_args is a mapping of SGLang's options, not {value!r:.80}")
    given = cast("Mapping[str, Any]", value)
    if taken := [name for name in given if name in _REACHED_BY or name.startswith("ssl_")]:
        raise InvalidRequestError(
            f"{url}: {taken[0]} is not for server_args: the program finds the server by it"
        )
    return given


def _kind(url: str) -> tuple[str, str]:
    """The kind of backend that a string names, and the part behind the colon."""
    scheme, _, rest = url.partition(":")
    kind = "http" if scheme == "https" else scheme
    fits = {  # true if the rest has the form that the scheme needs
        "local": True,
        "http": rest.startswith("//") and rest.strip("/"),
        "vllm": rest.startswith(("http:", "https:")),
        "sglang": rest,
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
