"""Where tokens come from: SGLang over HTTP or in-process, the embedded engine, a script.

`open_backend` makes one from a URL-like string; the classes themselves live in their own modules and are
imported only when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequest

if TYPE_CHECKING:
    from pasta_async.protocol import Backend

__all__ = ["open_backend"]

_FORMS = """  local:                  the embedded engine with the model that ships with the package
  local:/path/to/model    the embedded engine with a model folder
  http://host:30000       an SGLang server (https as well)
  sglang:/path/to/model   SGLang inside this process"""


def open_backend(url: str, **options: Any) -> Backend:
    """Make a backend from a URL-like string.

    Nothing is loaded or reached before its `connect`, which also says what to install if need be.

    Args:
        url: ``local:``, ``local:/path``, ``http://host:port`` (or https), ``sglang:/path``.
        options: Passed on to the backend's class.

    Raises:
        InvalidRequest: The string has none of these forms; the message lists them.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "local":
        from pasta_async.backends.local import LocalBackend

        return LocalBackend(rest or None, **options)
    if scheme in ("http", "https") and rest.strip("/") and rest.startswith("//"):
        from pasta_async.backends.sglang import SGLangBackend

        return SGLangBackend(url, **options)
    if scheme == "sglang" and rest:
        from pasta_async.backends.sglang import EngineBackend

        return EngineBackend(rest, **options)
    raise InvalidRequest(f"{url!r} names no backend. The forms are:\n{_FORMS}")
