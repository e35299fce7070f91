"""Open whatever a model is kept in."""

from __future__ import annotations

from pathlib import Path

from pasta_async.backends.local.adapter import AdapterFolder
from pasta_async.backends.local.bases import ADAPTER_CONFIG, base_of
from pasta_async.backends.local.checkpoint import Checkpoint, CheckpointFolder, read_json
from pasta_async.errors import UnsupportedModelError


def open_checkpoint(path: Path, base: Path | None = None) -> Checkpoint:
    """A checkpoint folder, a GGUF file, or the folder of an adapter with its base.

    Args:
        path: Of the folder or the file.
        base: Of an adapter; None for the one that its folder names.

    Raises:
        UnsupportedModelError: There is none, or the engine cannot compute the model.
        ModuleNotFoundError: It is a GGUF file, and the package `gguf` is not installed.
    """
    if (path / ADAPTER_CONFIG).is_file() and not (path / "config.json").is_file():
        base = base or base_of(path, read_json(path / ADAPTER_CONFIG))
        return AdapterFolder(path, _whole(base))
    if base is not None:
        raise UnsupportedModelError(f"{path} is no folder of an adapter, so it has no base")
    return _whole(path)


def _whole(path: Path) -> Checkpoint:
    if path.is_file():
        from pasta_async.backends.local.convert import converted

        return CheckpointFolder(converted(path))
    if not path.is_dir():
        raise UnsupportedModelError(f"there is no model folder or GGUF file {path}")
    return CheckpointFolder(path)
