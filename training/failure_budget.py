"""When to give up on a backend or an endpoint that fails again and again."""

from __future__ import annotations

from pasta_async.errors import BackendError, BackendStatusError, PastaError, ThreadFailedError

__all__ = ["FailureBudget"]

_IN_A_ROW = 10
_OF_ONE_REQUEST = (400, 413, 422)
"""Statuses by which a server refuses one request rather than all of them."""


class FailureBudget:
    """Ends a run when its requests fail for a reason that the rest of them share.

    Args:
        proven: Whether the server has answered before. Otherwise its first failure ends the run.
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
            PastaError: This error, if further requests would fail too: a refusal such as a wrong key, a
                server that never answered, or ten failures in a row.
        """
        cause = error.__cause__ if isinstance(error, ThreadFailedError) else error
        if not isinstance(cause, BackendError):
            return  # the prompt's fault, or the answer took too long
        self._in_a_row += 1
        status = cause.status if isinstance(cause, BackendStatusError) else None
        if status in _OF_ONE_REQUEST:
            return
        refused = status is not None and not cause.retryable
        if refused or not self._proven or self._in_a_row >= _IN_A_ROW:
            raise error
