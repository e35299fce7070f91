"""`serve_on_cpu.py MODEL --port PORT FLAG...`: `pasta-async sglang` with stand-ins for the GPU packages."""

from __future__ import annotations

import os
import sys

from tests.helpers.real_server import server_command

_, model, _, port, *flags = sys.argv
command = server_command(model, device="cpu", port=int(port), extra=["--skip-server-warmup", *flags])
os.execve(command.argv[0], command.argv, {**os.environ, **command.environment})
