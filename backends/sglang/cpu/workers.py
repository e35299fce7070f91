"""Entry points of SGLang's processes: a spawned process gets the placeholders by importing this module.

SGLang lets its launcher name the functions that its processes run; a process finds its function by the module
it stands in, so that this module is imported before anything of SGLang is.
"""

from __future__ import annotations

import importlib
from typing import Any

from pasta_async.backends.sglang.cpu.placeholders import install

install()

__all__ = ["run_detokenizer", "run_scheduler"]


def run_scheduler(server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """SGLang's scheduler process."""
    if server_args.enable_deterministic_inference:
        importlib.import_module("pasta_async.backends.sglang.cpu.seeded").without_batch_invariance()
    scheduler = importlib.import_module("sglang.srt.managers.scheduler")
    return scheduler.run_scheduler_process(server_args, *args, **kwargs)


def run_detokenizer(*args: Any, **kwargs: Any) -> Any:
    """SGLang's detokenizer process."""
    detokenizer = importlib.import_module("sglang.srt.managers.detokenizer_manager")
    return detokenizer.run_detokenizer_process(*args, **kwargs)
