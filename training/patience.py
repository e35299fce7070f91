"""When to give up on a backend or an endpoint that fails again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.errors import BackendError, BackendStatusError, ThreadFailedError

if TYPE_CHECKING:
    from pasta_async.errors import PastaError

__all__ = ["Patience"]

_FAILURES = 10
"""So many failures in a row end a run."""
_OF_ONE = (400, 413, 422)
"""Statuses by which a server refuses one request rather than all of them."""


class Patience:
    """Tells failures of one request, which the rest of a run survives, from those of all.

    Args:
        proven: Whether whoever is asked has answered before: else its first failure is its last.
    """

    def __init__(self, *, proven: bool) -> None:
        self._proven = proven
        self._in_a_row = 0

    def succeeded(self) -> None:
        """A request was answered."""
        self._proven, self._in_a_row = True, 0

    def failed(self, error: PastaError) -> None:
        """A request failed for good, after its own retries.

        Raises:
            PastaError: This error, if there is no use in asking for more.
        """
        cause = error.__cause__ if isinstance(error, ThreadFailedError) else error
        if not isinstance(cause, BackendError):
            return  # it is the prompt's, or the answer took too long
        self._in_a_row += 1
        status = isinstance(cause, BackendStatusError)
        if status and cause.status in _OF_ONE:
            return
        refused = status and not cause.retryable  # a wrong key, say
        if refused or not self._proven or self._in_a_row >= _FAILURES:
            raise error
