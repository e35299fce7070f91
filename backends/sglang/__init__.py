"""SGLang as a backend: a server over HTTP, or one that this program starts itself."""

from pasta_async.backends.sglang.backend import SGLangBackend
from pasta_async.backends.sglang.command import LaunchedBackend

__all__ = ["LaunchedBackend", "SGLangBackend"]
