"""The embedded engine: continuous batching over a radix cache, by kernels for int8 or in plain torch."""

from pasta_async.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
