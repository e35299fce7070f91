"""The interpreter: acts on PASTA-LANG while a model writes it.

`machine` decides and does no I/O; `runner` is the thin shell that sends requests and moves tokens.
"""

from __future__ import annotations

from pasta_async.interpreter.machine import Dialect, Fork, Machine
from pasta_async.interpreter.runner import Runner, thread_seed
from pasta_async.interpreter.slots import Slots

__all__ = ["Dialect", "Fork", "Machine", "Runner", "Slots", "thread_seed"]
