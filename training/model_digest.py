"""Digests that tell one model from another: commands go on only with results of the same one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pasta_async import Client
from pasta_async.backends.local.pull import ADAPTER_CONFIG, base_path, default_model, find_model
from pasta_async.errors import UnsupportedModelError

_PATTERNS = (
    *("config.json", "generation_config.json", ADAPTER_CONFIG, "*.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "*.jinja"),
)
_END = 2**20
"""Bytes at the end of a file that are hashed: training always changes them."""


def model_digest(model: str | Path) -> str:
    """16 hexadecimal digits that identify a model, by names, sizes and ends of its files.

    These are its configuration, weights, tokenizer, chat template and default sampling; an adapter's base
    belongs to it. `model` is the folder of a model or of an adapter, a GGUF file, or the name of a model that
    ships.

    Raises:
        UnsupportedModelError: There is no such model, or its base is not on this machine.
    """
    path = find_model(model)
    base = base_path(path)
    files = _files(path) if base == path else _files(path) + _files(base)
    if not files:
        raise UnsupportedModelError(f"there is no model {path}: no config.json and no weights")
    hashed = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as opened:
            opened.seek(max(0, size - _END))
            hashed.update(f"{file.name}/{size}/".encode() + opened.read())
    return hashed.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    """The files of a folder that make a model; a file is one by itself."""
    return [path] if path.is_file() else sorted(file for name in _PATTERNS for file in path.glob(name))


def backend_digest(backend: str) -> str:
    """The digest of the model that a backend (`open_backend`) computes here; empty for a server."""
    scheme, _, name = backend.partition(":")
    return model_digest(name or default_model()) if scheme in ("local", "sglang") else ""


async def weights_of(backend: str) -> str:
    """`backend_digest`; for a server the name of the model that it serves now.

    Raises:
        PastaError: There is no such model, or the server cannot be reached.

    Cancelling it leaves nothing open.
    """
    if not backend.startswith(("http", "vllm:")):
        return backend_digest(backend)
    async with Client(backend) as client:
        return (await client.connect()).name
