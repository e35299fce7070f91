"""A trained judge: its folder, and how it says how good an answer is."""

# safetensors leaves some of its types open.
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import StrictModel, digest, explain
from pasta_async.training.identity import model_digest
from pasta_async.training.judge.features import AnswerReader, FeatureSettings
from pasta_async.training.judge.head import Head

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.jobs import Journal
    from pasta_async.protocol import Message
    from pasta_async.training.preference import SampledPrompt

__all__ = ["RewardJudge", "StoredJudge"]


class _Description(StrictModel):
    """`judge.json`."""

    features: FeatureSettings
    base: str
    """The digest of the base model."""


@dataclass(frozen=True, slots=True)
class StoredJudge:
    """A judge in its folder: what it reads in judge.json, what it learned in judge.safetensors."""

    folder: Path
    features: FeatureSettings
    head: Head

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder.

        Raises:
            InvalidRequestError: It holds no judge, or the base model is gone or was trained anew.
        """
        try:
            text = (folder / "judge.json").read_text(encoding="utf-8")
            description = _Description.model_validate_json(text)
            head: dict[str, Any] = load_file(folder / "judge.safetensors")
            read = cls(folder, description.features, Head(head["weights"], head["effects"]))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            reason = explain(error) if isinstance(error, ValidationError) else error
            raise InvalidRequestError(
                f"{folder} holds no trained judge ({reason}): make one with pasta_async.training.judge"
            ) from error
        base = description.features.model
        if not (base / "config.json").is_file() or model_digest(base) != description.base:
            raise InvalidRequestError(
                f"{folder}: the model that it reads by, {base}, is another one now, or gone"
            )
        return read

    def write(self) -> None:
        """Write the folder; the judge is there when all of it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {"weights": np.asarray(self.head.weights), "effects": np.asarray(self.head.effects)}
        save_file(tensors, self.folder / "judge.safetensors")
        description = _Description(features=self.features, base=model_digest(self.features.model))
        (self.folder / "judge.json").write_text(
            description.model_dump_json(indent=1) + "\n", encoding="utf-8"
        )

    @property
    def identity(self) -> dict[str, str]:
        """What tells its verdicts from another judge's."""
        hashed = hashlib.sha256((self.folder / "judge.safetensors").read_bytes())
        hashed.update((self.folder / "judge.json").read_bytes())
        return {"judge": "reward", "digest": hashed.hexdigest()[:16]}


class RewardJudge:
    """A trained judge as a `pasta_async.training.score.Judge`: how likely an answer beats the baseline's.

    What preferences owe to length alone is left out, as if both were of the same length.

    Args:
        stored: The judge.
        journal: Keeps the rewards; those that it has are not computed again.
    """

    def __init__(self, stored: StoredJudge, journal: Journal) -> None:
        self._stored, self._journal = stored, journal
        self._known: dict[str, float] = {row["key"]: row["reward"] for row in journal.rows}
        self._turn = asyncio.Lock()

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability that an answer is better than the baseline's: a half if they are the same.

        An answer without text is worse than any other. A cancelled call leaves at once; what is computed
        then is finished in its thread, and dropped.

        Raises:
            InvalidRequestError: The prompt does not fit the chat template of the judge's base.
            UnsupportedModelError: The base model cannot be used.
        """
        other = prompt.baseline.text
        if text == other or not (text.strip() and other.strip()):
            return 0.5 + 0.5 * (bool(text.strip()) - bool(other.strip()))
        odds = await self._reward(prompt.messages, text) - await self._reward(prompt.messages, other)
        return 0.5 + 0.5 * math.tanh(odds / 2)

    async def _reward(self, messages: tuple[Message, ...], text: str) -> float:
        key = digest(messages, text)
        async with self._turn:
            if key not in self._known:
                self._known[key] = await asyncio.to_thread(self._compute, messages, text)
                self._journal.append({"key": key, "reward": self._known[key]})
        return self._known[key]

    def _compute(self, messages: tuple[Message, ...], text: str) -> float:
        return self._stored.head.reward(self._reader.read(messages, text), text)

    @cached_property
    def _reader(self) -> AnswerReader:
        return AnswerReader(self._stored.features)
