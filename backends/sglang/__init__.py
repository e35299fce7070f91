"""SGLang as a backend: a server over HTTP, or the engine in this process."""

from __future__ import annotations

from pasta_async.backends.sglang.engine import EngineBackend
from pasta_async.backends.sglang.http import SGLangBackend

__all__ = ["EngineBackend", "SGLangBackend"]
