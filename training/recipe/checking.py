"""Check the flags of all steps before the first one runs, by the settings of their commands."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.records import explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo

    from pasta_async.training.recipe.step import Step

__all__ = ["SETTINGS", "check_flags"]

_TRAINING = "pasta_async.training"

SETTINGS: dict[str, tuple[str, str]] = {
    f"{_TRAINING}.pretrain": (f"{_TRAINING}.pretrain", "Config"),
    f"{_TRAINING}.synthetic": (f"{_TRAINING}.synthetic.__main__", "SyntheticSettings"),
    f"{_TRAINING}.corpus": (f"{_TRAINING}.corpus.__main__", "CorpusSettings"),
    f"{_TRAINING}.annotate": (f"{_TRAINING}.annotate.__main__", "AnnotateSettings"),
    f"{_TRAINING}.finetune": (f"{_TRAINING}.finetune", "FinetuneSettings"),
    f"{_TRAINING}.sample": (f"{_TRAINING}.sample", "SampleSettings"),
    f"{_TRAINING}.score": (f"{_TRAINING}.score", "ScoreSettings"),
    f"{_TRAINING}.prefer": (f"{_TRAINING}.prefer", "PreferSettings"),
    f"{_TRAINING}.recipe.draw": (f"{_TRAINING}.recipe.draw", "DrawSettings"),
    "pasta_async.evals.frontier": ("pasta_async.evals.frontier.measuring", "FrontierSettings"),
}
"""Where the settings of each command are."""


def check_flags(steps: Sequence[Step]) -> None:
    """Check every step's flags as its command will.

    Raises:
        InvalidRequestError: One does not fit; with the step, the flag and the reason.
    """
    for step in steps:
        module, name = SETTINGS[step.module]
        settings: type[BaseModel] = getattr(import_module(module), name)
        try:
            settings.model_validate(
                {key: _given(value, settings.model_fields.get(key)) for key, value in step.flags.items()}
            )
        except ValidationError as error:
            raise InvalidRequestError(f"{step.name} ({step.module}): {explain(error)}") from None


def _given(value: Any, field: FieldInfo | None) -> Any:
    """A value as `read_command_line` gives it: several words make a list, tables are JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, Path):
        value = str(value)
    several = field is not None and getattr(field.annotation, "__origin__", None) is tuple
    return (value,) if several and not isinstance(value, list) else cast("Any", value)
