"""Start SGLang's HTTP server on a CPU: the arguments of `python -m sglang.launch_server`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from pasta_async.backends.sglang.cpu import workers

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Run the server until it is told to stop."""
    if "--enable-deterministic-inference" in arguments:
        seeded = importlib.import_module("pasta_async.backends.sglang.cpu.seeded")
        seeded.allow()
        seeded.without_batch_invariance()
    server_args = importlib.import_module("sglang.srt.server_args").prepare_server_args(list(arguments))
    try:
        importlib.import_module("sglang.srt.entrypoints.http_server").launch_server(
            server_args,
            run_scheduler_process_func=workers.run_scheduler,
            run_detokenizer_process_func=workers.run_detokenizer,
        )
    finally:
        importlib.import_module("sglang.srt.utils").kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
