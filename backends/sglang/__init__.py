"""SGLang as a backend: a server over HTTP, or the engine in this process."""

from __future__ import annotations

from pasta_async.backends.sglang.backend import SGLangBackend
from pasta_async.backends.sglang.engine import EngineBackend

__all__ = ["EngineBackend", "SGLangBackend"]
