"""The errors of pasta_async are one tree.

    PastaError
      InvalidRequestError (ValueError)
        PromptTooLongError
        pasta_async.plans.InvalidPlanError
      InvalidStateError (RuntimeError)
      GenerationTimeoutError (TimeoutError)
      ThreadFailedError
      BackendError
        BackendTransportError
          BackendConnectError
          BackendTimeoutError (TimeoutError)
        BackendStatusError
        BackendProtocolError
        UnsupportedModelError
      TrainingError
      pasta_async.lang.ParseError
      pasta_async.plans.ValidationFailedError

Every error that ends an answer carries what was generated so far in ``partial``. A bad option is refused
before there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pasta_async.results import Generation

__all__ = [
    "BackendConnectError",
    "BackendError",
    "BackendProtocolError",
    "BackendStatusError",
    "BackendTimeoutError",
    "BackendTransportError",
    "GenerationTimeoutError",
    "InvalidRequestError",
    "InvalidStateError",
    "PastaError",
    "PromptTooLongError",
    "ThreadFailedError",
    "TrainingError",
    "UnsupportedModelError",
]


class PastaError(Exception):
    """Base of every error that pasta_async raises."""

    partial: Generation | None = None
    """The answer up to the error; None if an option was refused, so that no answer had begun."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy it with all its fields, for other processes say. Its cause is left out."""
        return _without_init, (type(self), self.args), vars(self)


def _without_init(kind: type[PastaError], args: tuple[object, ...]) -> PastaError:
    return kind.__new__(kind, *args)


class InvalidRequestError(PastaError, ValueError):
    """A value was refused before any request was sent."""


class PromptTooLongError(InvalidRequestError):
    """The prompt has more tokens than the model's context, or `Limits.prompt_tokens`, takes."""

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit
        """Largest number of tokens that a prompt may have."""


class InvalidStateError(PastaError, RuntimeError):
    """An object was used in the wrong state: a client that was closed, a stream that was not entered."""


class GenerationTimeoutError(PastaError, TimeoutError):
    """The answer took longer than ``Limits.timeout``."""


class BackendError(PastaError):
    """A backend failed."""

    retryable: bool = False
    """True if sending the same request again may succeed."""


class BackendTransportError(BackendError):
    """The connection to the server broke off. It says nothing about the request: the server may be gone."""

    retryable = True


class BackendConnectError(BackendTransportError):
    """Nothing usable answers at the backend's address."""


class BackendTimeoutError(BackendTransportError, TimeoutError):
    """The server sent nothing for too long. Sending the request again could wait as long once more."""

    retryable = False


class BackendStatusError(BackendError):
    """The server answered with an error status."""

    def __init__(self, message: str, *, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds to wait before the next request, if the server said so."""
        self.retryable: bool = status in (408, 425, 429) or status >= 500


class BackendProtocolError(BackendError):
    """The server's reply was malformed or incomplete."""

    retryable = True


class UnsupportedModelError(BackendError):
    """The model cannot be used by this backend."""


class ThreadFailedError(PastaError):
    """A thread of the answer failed; ``__cause__`` is the error that it failed with."""

    def __init__(self, message: str, *, thread: int) -> None:
        super().__init__(message)
        self.thread = thread


class TrainingError(PastaError):
    """A training run cannot go on; its last checkpoint is whole."""


def missing_extra(feature: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for a failed import: it names the feature that needs the module, and the extra to install."""
    text = (
        f"{feature} needs {error.name}, which is not installed; pip install 'pasta_async[{extra}]' brings it"
    )
    return ModuleNotFoundError(text, name=error.name)
