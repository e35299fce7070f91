"""The command that starts an SGLang server as pasta_async likes it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ServerCommand", "server_command"]

Device = Literal["cuda", "cpu"]

_COMMON = {
    "--incremental-streaming-output": "events hold what is new, not the whole answer again",
    "--schedule-policy lpm": "threads of one answer wait next to the prefix they share",
}
_CUDA = {"--attention-backend flashinfer": "attention by flashinfer"}
_CPU = {
    "--device cpu": "no GPU was found",
    "--attention-backend torch_native": "attention by torch itself; flashinfer needs a GPU",
    "--sampling-backend pytorch": "sampling by torch itself",
    "--dtype float32": "the same numbers as the embedded engine",
    "--page-size 1": "forks share the prefix to the last token",
    "--max-total-tokens 65536": "room for that many tokens in the KV cache, not most of the memory",
}


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command, and why it is what it is."""

    argv: list[str]
    device: Device
    reasons: dict[str, str]
    """Each flag that was chosen here, with the reason."""


def server_command(
    model: str,
    *,
    device: Device | None = None,
    host: str = "127.0.0.1",
    port: int = 30000,
    extra: Sequence[str] = (),
) -> ServerCommand:
    """The command that serves `model` by SGLang.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: Where to run; None looks for a GPU.
        host: Address to listen at.
        port: Port to listen at.
        extra: Further arguments of SGLang, which win over those chosen here.

    Raises:
        ModuleNotFoundError: SGLang is not installed; the message says how to.
    """
    if importlib.util.find_spec("sglang") is None:
        raise ModuleNotFoundError("SGLang is not installed: pip install 'pasta_async[sglang]'")
    device = device or _device()
    given = {argument.partition("=")[0] for argument in extra}
    flags = _COMMON | (_CUDA if device == "cuda" else _CPU)
    chosen = {flag: why for flag, why in flags.items() if flag.split()[0] not in given}
    module = "sglang.launch_server" if device == "cuda" else "pasta_async.backends.sglang.cpu"
    argv = [sys.executable, "-m", module, "--model-path", model, "--host", host, "--port", str(port)]
    return ServerCommand([*argv, *(word for flag in chosen for word in flag.split()), *extra], device, chosen)


def _device() -> Device:
    return "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
