"""What a judge sees of an answer: the mean of a language model's hidden states over the answer's tokens."""

# torch, transformers and peft leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from transformers import AutoModel

from pasta_async.backends.local.checkpoint import CheckpointFolder
from pasta_async.backends.tokenization import TextCodec
from pasta_async.training.corpus import StrictModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta_async.protocol import Message

__all__ = ["AnswerReader", "FeatureSettings"]


class FeatureSettings(StrictModel):
    """What is read of an answer, and by which model."""

    model: Path = Field(description="base of the judge: a checkpoint folder of a Llama, Qwen2 or Qwen3")
    prompt_tokens: int = Field(
        default=512, ge=16, description="tokens of a prompt that are read; of a longer one, both ends"
    )
    answer_tokens: int = Field(default=512, ge=1, description="tokens of an answer that are read, its first")


class AnswerReader:
    """Reads answers with a frozen model.

    On a CPU that multiplies in bfloat16 it computes so, as on CUDA: three times as fast as in float32.

    Args:
        settings: What to read.
        adapter: Folder of adapters of that model, in peft's format.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """

    def __init__(self, settings: FeatureSettings, adapter: Path | None = None) -> None:
        CheckpointFolder(settings.model, "a judge cannot read with it")
        self._codec = TextCodec.from_folder(settings.model)
        self._settings = settings
        self.device: torch.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model: Any = AutoModel.from_pretrained(
            settings.model, dtype=_dtype(self.device), attn_implementation="sdpa"
        )
        if adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, adapter)
        self.model: Any = model.to(self.device).eval()

    def encode(self, messages: Sequence[Message], text: str) -> tuple[list[int], int]:
        """The ids of a prompt and of an answer to it, and how many of them are the answer's.

        An answer that is read whole ends with the end-of-text.
        """
        prompt = self._codec.encode_chat(messages, {})
        limit, room = self._settings.answer_tokens, self._settings.prompt_tokens
        if len(prompt) > room:
            prompt = prompt[: room // 2] + prompt[len(prompt) - room // 2 :]
        answer = self._codec.encode(text)
        answer = answer[:limit] if len(answer) > limit else [*answer, *self._codec.end_ids[:1]]
        return prompt + answer, len(answer)

    def states(self, ids: Sequence[int], answer: int) -> torch.Tensor:
        """The features of an encoded answer: [hidden], float32, with gradients where there are any."""
        rows = torch.tensor([ids], device=self.device)
        return self.model(input_ids=rows, use_cache=False).last_hidden_state[0, -answer:].float().mean(0)

    def read(self, messages: Sequence[Message], text: str) -> NDArray[Any]:
        """The features of an answer: [hidden], float32.

        Raises:
            InvalidRequestError: The prompt does not fit the chat template.
        """
        with torch.inference_mode():
            return self.states(*self.encode(messages, text)).cpu().numpy()


def _dtype(device: torch.device) -> torch.dtype:
    able = torch.cpu.get_capabilities() if device.type == "cpu" else {"avx512_bf16": True}
    return torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32
