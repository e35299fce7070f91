"""The common part of the backends for servers: HTTP, requests that end with their reader, the model's tokenizer."""

from pasta_async.backends.http.backend import (
    Call,
    ServedModel,
    ServerBackend,
    ServerOptions,
    checked_ids,
    merged,
)

__all__ = ["Call", "ServedModel", "ServerBackend", "ServerOptions", "checked_ids", "merged"]
