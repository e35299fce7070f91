"""What a judge sees of an answer: the mean of a language model's hidden states over the answer's tokens."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from transformers import AutoModel

from pasta_async.backends.local.checkpoint import CheckpointFolder
from pasta_async.backends.local.linear import fast_bfloat16
from pasta_async.backends.local.memory import keep_freed_memory
from pasta_async.backends.tokenization import TextCodec
from pasta_async.training.corpus import StrictModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta_async.protocol import Message

__all__ = ["REFUSAL", "AnswerReader", "FeatureSettings"]

REFUSAL = "a judge cannot read with it"


class FeatureSettings(StrictModel):
    """What is read of an answer, and by which model."""

    model: Path = Field(description="base of the judge: a checkpoint folder of a Llama, Qwen2 or Qwen3")
    prompt_tokens: int = Field(
        default=512, ge=16, description="tokens of a prompt that are read; of a longer one, both ends"
    )
    answer_tokens: int = Field(default=512, ge=1, description="tokens of an answer that are read, its first")


class AnswerReader:
    """Reads answers with a frozen model, in bfloat16 where that is fast.

    Args:
        settings: What to read.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """

    def __init__(self, settings: FeatureSettings) -> None:
        CheckpointFolder(settings.model, REFUSAL)
        self._codec = TextCodec.from_folder(settings.model)
        self._settings = settings
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        keep_freed_memory()
        model: Any = AutoModel.from_pretrained(
            settings.model, dtype=torch.float32, attn_implementation="sdpa"
        )
        dtype = torch.bfloat16 if fast_bfloat16(model.num_parameters(), device) else torch.float32
        self._model = model.to(device, dtype).eval()
        self._device = device

    @torch.inference_mode()
    def read(self, messages: Sequence[Message], text: str) -> NDArray[Any]:
        """The features of an answer: [hidden], float32.

        Raises:
            InvalidRequestError: The prompt does not fit the chat template.
        """
        prompt, answer = self._encode(messages, text)
        ids = torch.tensor([prompt + answer], device=self._device)
        states = self._model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) :]
        return states.float().mean(0).cpu().numpy()

    def _encode(self, messages: Sequence[Message], text: str) -> tuple[list[int], list[int]]:
        """The ids of a prompt and of an answer; one that is read whole ends with the end-of-text."""
        prompt = self._codec.encode_chat(messages, {})
        limit, room = self._settings.answer_tokens, self._settings.prompt_tokens
        if len(prompt) > room:
            prompt = prompt[: room // 2] + prompt[len(prompt) - room // 2 :]
        answer = self._codec.encode(text)
        return prompt, answer[:limit] if len(answer) > limit else [*answer, *self._codec.end_ids[:1]]
