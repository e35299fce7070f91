"""A trained judge: what it sees of an answer, its folder, and how it says how good an answer is.

It sees the mean of a language model's hidden states over the answer's tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from transformers import AutoModel

from pasta_async.backends.tokenization import TextCodec
from pasta_async.cli.command import CommandSettings
from pasta_async.errors import InvalidRequestError
from pasta_async.jobs import Journal
from pasta_async.prompts import Message
from pasta_async.training.data.corpus import StrictModel, explain
from pasta_async.training.identity import model_digest
from pasta_async.training.judge.head import Head
from pasta_async.training.judging import ModelJudge
from pasta_async.training.likelihood import load_frozen
from pasta_async.training.samples import SampledPrompt

REFUSAL = "a judge cannot read with it"


class FeatureSettings(CommandSettings):
    """What is read of an answer, and by which model."""

    model: Path = Field(description="base of the judge: a checkpoint folder of a Llama, Qwen2 or Qwen3")
    prompt_tokens: int = Field(
        default=512, ge=16, description="tokens of a prompt that are read; of a longer one, both ends"
    )
    answer_tokens: int = Field(default=512, ge=1, description="tokens of an answer that are read, its first")


class AnswerReader:
    """Reads answers with a model that is not trained.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """

    def __init__(self, settings: FeatureSettings) -> None:
        self._model = load_frozen(AutoModel, settings.model, REFUSAL)
        self._codec = TextCodec.from_folder(settings.model)
        self._settings = settings

    @torch.inference_mode()
    def read(self, messages: Sequence[Message], text: str) -> NDArray[Any]:
        """The features of an answer: [hidden], float32.

        Raises:
            InvalidRequestError: The prompt does not fit the chat template.
        """
        prompt, answer = self._codec.encode_chat(messages, {}), self._codec.encode(text)
        limit, room = self._settings.answer_tokens, self._settings.prompt_tokens
        if len(prompt) > room:
            prompt = prompt[: room // 2] + prompt[len(prompt) - room // 2 :]
        # An answer that is read whole ends with the end-of-text.
        answer = answer[:limit] if len(answer) > limit else [*answer, *self._codec.end_ids[:1]]
        ids = torch.tensor([prompt + answer], device=self._model.device)
        states = self._model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) :]
        return states.float().mean(0).cpu().numpy()


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
            read = cls(folder, description.features, Head(**head))
        except (OSError, ValueError, TypeError, SafetensorError) as error:
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
        save_file(self.head._asdict(), self.folder / "judge.safetensors")
        description = _Description(features=self.features, base=model_digest(self.features.model))
        (self.folder / "judge.json").write_text(description.model_dump_json(indent=1) + "\n", "utf-8")

    @property
    def identity(self) -> dict[str, str]:
        """What tells its verdicts from another judge's."""
        both = b"".join((self.folder / name).read_bytes() for name in ("judge.safetensors", "judge.json"))
        return {"judge": "reward", "digest": hashlib.sha256(both).hexdigest()[:16]}


class RewardJudge(ModelJudge):
    """A trained judge: how likely an answer beats the baseline's.

    What preferences owe to length alone is left out, as if both were of the same length.

    Args:
        stored: The judge.
        journal: Keeps the rewards; those that it has are not computed again.
    """

    def __init__(self, stored: StoredJudge, journal: Journal) -> None:
        super().__init__(journal)
        self._stored = stored

    def compute(self, messages: Sequence[Message], texts: Sequence[str]) -> list[float]:
        """The rewards of some answers."""
        return [self._stored.head.reward(self._reader.read(messages, text), text) for text in texts]

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability that an answer is better than the baseline's: a half if they are the same.

        An answer without text is worse than any other. Cancelling it leaves what is under way to end by
        itself, unused.

        Raises:
            InvalidRequestError: The prompt does not fit the chat template of the judge's base.
            UnsupportedModelError: The base model cannot be used.
        """
        other = prompt.baseline.text
        if text == other or not (text.strip() and other.strip()):
            return 0.5 + 0.5 * (bool(text.strip()) - bool(other.strip()))
        found = await self.figures(prompt, (text, other))
        return 0.5 + 0.5 * math.tanh(((found[text] or 0.0) - (found[other] or 0.0)) / 2)

    @cached_property
    def _reader(self) -> AnswerReader:
        return AnswerReader(self._stored.features)
