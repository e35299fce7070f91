"""Where tokens come from: SGLang over HTTP or in-process, the embedded engine, a script.

`open_backend` makes one from a URL-like string; the classes themselves live in their own modules and are
imported only when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError, InvalidRequest

if TYPE_CHECKING:
    from pasta_async.protocol import Backend

__all__ = ["open_backend"]

_FORMS = """  local:                  the embedded engine with the model that ships with the package
  local:/path/to/model    the embedded engine with a model folder
  http://host:30000       an SGLang server (https as well)
  sglang:/path/to/model   SGLang inside this process"""


def open_backend(url: str, **options: Any) -> Backend:
    """Make a backend from a URL-like string; nothing is loaded or reached before its `connect`.

    Args:
        url: ``local:``, ``local:/path``, ``http://host:port`` (or https), ``sglang:/path``.
        options: Passed on to the backend's class.

    Raises:
        InvalidRequest: The string has none of these forms; the message lists them.
        BackendError: The extra that this backend needs is not installed; the message has the command.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "local":
        return _open_local(rest, options)
    if scheme in ("http", "https") and rest.startswith("//") and rest.strip("/"):
        from pasta_async.backends.sglang import SGLangBackend

        return SGLangBackend(url, **options)
    if scheme == "sglang" and rest:
        return _open_engine(rest, options)
    raise InvalidRequest(f"{url!r} names no backend. The forms are:\n{_FORMS}")


def _open_local(path: str, options: dict[str, Any]) -> Backend:
    try:
        from pasta_async.backends.local import LocalBackend
    except ModuleNotFoundError as error:
        raise _missing("local", error) from error
    return LocalBackend(path or None, **options)


def _open_engine(path: str, options: dict[str, Any]) -> Backend:
    from pasta_async.backends.sglang import EngineBackend

    return EngineBackend(path, **options)


def _missing(extra: str, error: ModuleNotFoundError) -> Exception:
    if (error.name or "").startswith("pasta_async"):
        return error
    return BackendError(
        f"{extra}: needs the module {error.name!r}, which is not installed; "
        f"pip install 'pasta_async[{extra}]' brings it"
    )
