"""What can go wrong in a scripted model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pasta_async.errors import BackendError, BackendProtocolError

__all__ = ["Fault", "Trap"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong in a thread's request."""

    thread: int
    """0 is the main thread, k the k-th promise."""
    after_tokens: int
    """How many tokens the request has put out by then; one that ends sooner is not hit."""
    kind: Literal["fail", "stall", "cut", "garbage"] = "fail"
    """`fail` raises `error`; `stall` never says anything again; `cut` breaks the stream off, which raises a
    `BackendProtocolError`; `garbage` writes `text` there, then goes on."""
    times: int = 1
    """How many of the thread's requests it is laid for, one after another."""
    skip: int = 0
    """How many of the thread's requests go by before that."""
    error: Exception | None = None
    """What `fail` raises; a `BackendError` unless given."""
    retryable: bool = False
    """Whether the `BackendError` says that trying again may help."""
    text: str = '" tokens="\ufffd"/>'
    """What `garbage` writes."""

    def make_error(self) -> Exception:
        """The exception that the request ends with."""
        where = f"thread {self.thread} after {self.after_tokens} tokens"
        if self.kind == "cut":
            return BackendProtocolError(f"scripted: the stream of {where} broke off")
        if self.error is not None:
            return self.error
        error = BackendError(f"scripted: failure of {where}")
        error.retryable = self.retryable
        return error


@dataclass(slots=True)
class Trap:
    """A fault, and how many requests of its thread have come by."""

    fault: Fault
    seen: int = 0

    def hits(self, thread: int) -> bool:
        """Count a request, and say whether it is to be hit."""
        if thread != self.fault.thread:
            return False
        self.seen += 1
        return self.fault.skip < self.seen <= self.fault.skip + self.fault.times
