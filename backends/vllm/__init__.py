"""vLLM as a backend: a stock server over HTTP."""

from pasta_async.backends.vllm.backend import VLLMBackend

__all__ = ["VLLMBackend"]
