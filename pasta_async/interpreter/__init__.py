"""The interpreter: acts on PASTA-LANG while a model writes it.

`machine` decides and does no I/O; `runner` is the thin shell that sends requests and moves tokens.
"""

from __future__ import annotations

from pasta_async.interpreter.machine import Machine
from pasta_async.interpreter.reading import THINK_OPEN, Dialect
from pasta_async.interpreter.retry import run_restarting, with_retries
from pasta_async.interpreter.runner import Runner, thread_seed
from pasta_async.interpreter.width import PrioritySemaphore, Share, WidthControl

__all__ = [
    "THINK_OPEN",
    "Dialect",
    "Machine",
    "PrioritySemaphore",
    "Runner",
    "Share",
    "WidthControl",
    "run_restarting",
    "thread_seed",
    "with_retries",
]
