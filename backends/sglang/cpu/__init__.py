"""Run SGLang, unmodified, on a machine with no GPU stack: for tests and for trying things out.

``python -m pasta_async.backends.sglang.cpu --model-path MODEL ...`` takes the arguments of
``python -m sglang.launch_server``. Its speed says nothing about SGLang on a GPU.
"""

from __future__ import annotations

from pasta_async.backends.sglang.cpu.placeholders import install

__all__ = ["install"]
