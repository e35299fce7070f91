"""The embedded engine: continuous batching over a radix cache, in plain torch, on a CPU or on CUDA."""

from pasta_async.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
