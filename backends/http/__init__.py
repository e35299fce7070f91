"""The part that the backends for servers share: requests that end with their reader, and the tokenizer."""

from pasta_async.backends.http.backend import (
    Call,
    ServedModel,
    ServerBackend,
    ServerOptions,
    checked_ids,
    merged,
)

__all__ = ["Call", "ServedModel", "ServerBackend", "ServerOptions", "checked_ids", "merged"]
