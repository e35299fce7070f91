"""The likelihood of texts under a language model: bits a token, many texts to a forward pass."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoModelForCausalLM

from pasta_async.backends.local.checkpoint import open_folder
from pasta_async.backends.local.machine import keep_freed_memory
from pasta_async.backends.options import TorchDType
from pasta_async.errors import InvalidRequestError
from pasta_async.model_folder import TokenizerFiles
from pasta_async.protocol import Message
from pasta_async.tokenizer import Tokenizer
from pasta_async.training.jobs import Journal
from pasta_async.training.judging import ModelJudge
from pasta_async.training.model_digest import model_digest
from pasta_async.training.rows import computes_half, pack_row, row_length, target_losses
from pasta_async.training.samples import SampledPrompt
from pasta_async.training.views import Trie

Key = TypeVar("Key", bound=Hashable)

_ROW_TOKENS = 1024


def read_by(folder: Path | str, dtype: TorchDType) -> dict[str, str]:
    """The model and the number format that figures come from: what a journal of them is for."""
    return {"model": model_digest(folder), "dtype": str(_numbers(dtype)).removeprefix("torch.")}


def load_frozen(kind: Any, folder: Path | str, dtype: TorchDType = "auto") -> Any:
    """A model of transformers' class `kind` that is not trained.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """
    open_folder(Path(folder))
    keep_freed_memory()
    model = kind.from_pretrained(folder, dtype=_numbers(dtype)).to(_device())
    return model.requires_grad_(False).eval()


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _numbers(dtype: TorchDType) -> torch.dtype:
    return torch.bfloat16 if computes_half(dtype, _device()) else torch.float32


class LanguageModel(Tokenizer):
    """A Llama, Qwen2 or Qwen3, with the tags or without, that tells how likely tokens are; and its tokenizer.

    A forward pass has about `_ROW_TOKENS`, or as many as a text needs with its context.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """

    def __init__(self, folder: Path | str, dtype: TorchDType = "auto") -> None:
        self._model = load_frozen(AutoModelForCausalLM, folder, dtype)
        super().__init__(TokenizerFiles.read(Path(folder)))
        self.context: int = self._model.config.max_position_embeddings
        """Most tokens of a prompt and its answer."""

    @torch.inference_mode()
    def bits(self, texts: Iterable[tuple[Key, Sequence[int], Sequence[int]]]) -> dict[Key, float]:
        """Mean bits of a token of each text, by its key; a text without tokens has none.

        Each text is a key that is used once, at least one id before it, and its own ids. Texts that stand
        side by side share what they begin with.
        """
        # Trees, and the keys and sizes of their texts. A tree is full at half a row.
        trees: list[tuple[Trie, list[tuple[Key, int]]]] = []
        for key, context, ids in texts:
            if not trees or len(trees[-1][0]) > _ROW_TOKENS // 2:
                trees.append((Trie(), []))
            tree, sizes = trees[-1]
            tree.extend(tree.extend(-1, context), ids, target=True)
            if ids:
                sizes.append((key, len(ids)))
        bits: dict[Key, float] = {}
        device = self._model.device
        for tree, sizes in trees:
            length = row_length(len(tree), _ROW_TOKENS, device)
            losses = target_losses(self._model, pack_row([tree], length, device)) / math.log(2)
            of_targets = iter(losses.tolist())
            for key, size in sizes:
                bits[key] = math.fsum(islice(of_targets, size)) / size
        return bits


class LikelihoodJudge(ModelJudge):
    """A language model that finds an answer likely, or not. All samples of a prompt are computed together."""

    sees_faults = False

    def __init__(self, model: LanguageModel, journal: Journal) -> None:
        super().__init__(journal)
        self._model = model

    def compute(self, messages: Sequence[Message], texts: Sequence[str]) -> list[float | None]:
        """Bits a token of plain answers to one prompt; the end of an answer is not counted.

        The model is asked in its plain form, if it has two. None is for an empty text, and for one that the
        model's context cannot hold.
        """
        prompt = self._model.encode_chat(messages, {"pasta": False})
        answers = enumerate(map(self._model.encode, texts))
        longest = self._model.context - len(prompt)
        bits = self._model.bits((number, prompt, ids) for number, ids in answers if len(ids) <= longest)
        return [bits.get(number) for number in range(len(texts))]

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability of a token of the answer relative to the baseline's: geometric means, 1 at most.

        That is 2 ** -x, where x is how many bits a token the answer costs more than the baseline's: 1 for one
        that costs no more, a half for one that costs a bit more, 0 for an empty one. After a cancellation the
        computation under way ends by itself, unused.

        Raises:
            InvalidRequestError: The answer, or the baseline's, does not fit the model's context.
        """
        baseline = prompt.baseline.text
        samples = (sample.text for sample in prompt.samples)
        bits_of = await self.figures(prompt, sorted({text, baseline, *samples}))
        if not text or not baseline:
            return float(text == baseline)
        bits, plain = bits_of[text], bits_of[baseline]
        if bits is None or plain is None:
            raise InvalidRequestError(
                f"an answer to {prompt.id!r} does not fit the judge's {self._model.context} tokens: take a "
                "model of a longer context, or draw shorter answers"
            )
        return min(1.0, 2.0 ** (plain - bits))
