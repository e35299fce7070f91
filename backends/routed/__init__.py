"""Several backends of one model as one: see `RoutedBackend`."""

from __future__ import annotations

from pasta_async.backends.routed.backend import RoutedBackend
from pasta_async.backends.routed.member import Member

__all__ = ["Member", "RoutedBackend"]
