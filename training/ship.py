"""Ship a trained adapter: `python -m pasta_async.training.ship --adapter RUN/adapter ...`.

It writes the folder that ships. Weights become float16. The tokenizer is left out, after a check that it is
the base's with the tags behind its tokens. A model card (README.md) and a `base.json` that are in the folder
already stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from pasta_async.backends.local.adapter import ADAPTER_WEIGHTS, open_adapter, open_checkpoint
from pasta_async.backends.local.checkpoint import Checkpoint, read_json
from pasta_async.backends.local.pull import ADAPTER_CONFIG
from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.model_folder import find_template, write_json

_PROBES = (
    "In 1984, 3 cats sat.\n\n1. Tea\n2. Coffee",
    "  x = [1,\t2]  # naïve 漢字 🎉",
    "It's one,two;three\r\n",
)


class ShipSettings(CommandSettings):
    """Options of shipping."""

    adapter: Path = Field(description="the trainer's OUT/adapter")
    base: Path = Field(description="its base as users will have it: a GGUF file or a model folder")
    base_name: str = Field(description="what peft is to call the base: a name on the Hugging Face hub")
    repetition_penalty: float = Field(default=1.0, gt=0, le=2, description="what users get by default")
    suppress_estimates: bool = Field(
        default=False, description="it was trained without estimates: no promise is to get one"
    )
    out: Path = Field(description="the folder that ships")


def ship(settings: ShipSettings) -> dict[str, Any]:
    """Write the folder; returns its size in bytes.

    Raises:
        UnsupportedModelError: The adapter cannot be merged, or does not fit the base.
        InvalidRequestError: Its tokenizer is not the base's with the tags, or a weight is too large.
    """
    base = open_checkpoint(settings.base)
    trained = open_adapter(settings.adapter, base)
    tensors = load_file(settings.adapter / ADAPTER_WEIGHTS)
    rounded = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in rounded.values()):
        raise InvalidRequestError(f"{settings.adapter}: a weight is larger than float16 can say")
    out = settings.out
    out.mkdir(parents=True, exist_ok=True)
    save_file(rounded, out / ADAPTER_WEIGHTS, {"format": "pt"})
    config = read_json(settings.adapter / ADAPTER_CONFIG)
    write_json(out / ADAPTER_CONFIG, {**config, "base_model_name_or_path": settings.base_name})
    tokenizer = trained.tokenizer()
    generation: dict[str, Any] = {
        "eos_token_id": [*tokenizer.end_ids],
        "repetition_penalty": settings.repetition_penalty,
    }
    if tokenizer.tags and settings.suppress_estimates:
        generation["suppress_tokens"] = [tokenizer.tags.tokens]
    write_json(out / "generation_config.json", generation)
    if template := find_template(settings.adapter, {}):
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    try:
        _compare(trained, open_adapter(out, base))
    except PastaError:
        (out / ADAPTER_WEIGHTS).unlink()  # what was refused cannot be loaded
        raise
    return {"bytes": sum(file.stat().st_size for file in out.iterdir())}


def _compare(trained: Checkpoint, shipped: Checkpoint) -> None:
    """Refuse an adapter that was trained with another tokenizer than users will have."""
    ours, theirs = trained.tokenizer(), shipped.tokenizer()
    our_files, their_files = trained.tokenizer_files(), shipped.tokenizer_files()
    same = [
        our_files.tokenizer["model"]["vocab"] == their_files.tokenizer["model"]["vocab"],
        ours.tags == theirs.tags,
        ours.end_ids == theirs.end_ids,
        our_files.template == their_files.template,
        *(ours.encode(text) == theirs.encode(text) for text in _PROBES),
    ]
    if not all(same):
        raise InvalidRequestError(
            f"{trained.path}: its tokenizer is not that of the base with the tags behind it"
        )


main: Command = command(ShipSettings, ship, "pasta_async.training.ship", __doc__)

if __name__ == "__main__":
    main()
