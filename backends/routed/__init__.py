"""Several backends as one: each answer stays on one of them, chosen by what it has cached and by its load."""

from __future__ import annotations

from pasta_async.backends.routed.backend import RoutedBackend
from pasta_async.backends.routed.member import MemberState

__all__ = ["MemberState", "RoutedBackend"]
