"""The likelihood of texts under a language model: bits a token, many texts to a forward pass."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from pasta_async.backends.local.cache import keep_freed_memory
from pasta_async.backends.local.checkpoint import open_folder
from pasta_async.errors import InvalidRequestError
from pasta_async.model_folder import TokenizerFiles
from pasta_async.protocol import Message
from pasta_async.training.jobs import Journal
from pasta_async.training.judging import ModelJudge
from pasta_async.training.rows import deal_rows, pack_row, row_length, target_losses
from pasta_async.training.samples import SampledPrompt
from pasta_async.training.views import Codec, Trie


def load_frozen(kind: Any, folder: Path | str) -> Any:
    """A model of transformers' class `kind` that is not trained, in bfloat16 on CUDA.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """
    open_folder(Path(folder))
    keep_freed_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = kind.from_pretrained(folder, dtype=torch.float32)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return model.to(device, dtype).eval()


class LanguageModel(Codec):
    """A Llama, Qwen2 or Qwen3, with the tags or without, that tells how likely tokens are; and its tokenizer.

    A forward pass has `row_tokens`; a tree that is larger gets one of its own.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """

    def __init__(self, folder: Path | str, row_tokens: int = 1024) -> None:
        self._model = load_frozen(AutoModelForCausalLM, folder)
        super().__init__(TokenizerFiles.read(Path(folder)))
        self.context: int = self._model.config.max_position_embeddings
        """Most tokens of a prompt and its answer."""
        self.row_tokens: int = row_tokens

    @torch.inference_mode()
    def bits(self, trees: Sequence[Trie]) -> list[list[float]]:
        """Bits of each target of each tree. A target has a token before it, which predicts it."""
        # Small trees are dealt to rows, so that a forward pass has several; a large one is a row alone.
        sizes = [len(tree) for tree in trees]
        small = [number for number, size in enumerate(sizes) if size <= self.row_tokens]
        dealt = deal_rows([sizes[number] for number in small], self.row_tokens, 1) if small else []
        rows = [[small[index] for index in row] for row in dealt if row]
        rows += [[number] for number, size in enumerate(sizes) if size > self.row_tokens]
        losses = [list[float]() for _ in trees]
        device = self._model.device
        for row in rows:
            used = sum(sizes[number] for number in row)
            length = row_length(used, self.row_tokens, few=device.type == "cuda")
            packed = pack_row([trees[number] for number in row], length, max(self.end, 0), device)
            # The losses of a row are those of its trees, in order: each tree takes as many as it has targets.
            bits = iter((target_losses(self._model, packed) / math.log(2)).tolist())
            for number in row:
                losses[number] = [next(bits) for _ in trees[number].targets]
        return losses


def bits_per_token(
    model: LanguageModel, answers: Sequence[tuple[Sequence[Message], str]]
) -> list[float | None]:
    """The likelihood of plain answers, in bits a token of the text; its end is not counted.

    The model is asked in its plain form, if it has two. Answers to one prompt that stand side by side share
    it, and what they begin with.

    Returns:
        None for an empty text, and for one that the model's context cannot hold.
    """
    # Trees with their prompt and, for each target, the number of its answer. A tree is full at half a row.
    trees: list[tuple[list[int], Trie, list[int]]] = []
    for number, (messages, text) in enumerate(answers):
        prompt = model.prompt(messages, pasta=False)
        ids = model.encode(text)
        if not ids or len(prompt) + len(ids) > model.context:
            continue
        if not trees or trees[-1][0] != prompt or len(trees[-1][1]) > model.row_tokens // 2:
            trees.append((prompt, Trie(), []))
        _, tree, owners = trees[-1]
        tree.extend(tree.extend(-1, prompt), ids, target=True)
        owners.extend(number for _ in ids)
    by_answer: list[list[float]] = [[] for _ in answers]
    for (_, _, owners), losses in zip(trees, model.bits([tree for _, tree, _ in trees]), strict=True):
        for owner, bits in zip(owners, losses, strict=True):
            by_answer[owner].append(bits)
    return [math.fsum(bits) / len(bits) if bits else None for bits in by_answer]


class LikelihoodJudge(ModelJudge):
    """A language model that finds an answer likely, or not. All samples of a prompt are computed together."""

    sees_length = False
    sees_faults = False

    def __init__(self, model: LanguageModel, journal: Journal) -> None:
        super().__init__(journal)
        self._model = model

    def compute(self, messages: Sequence[Message], texts: Sequence[str]) -> list[float | None]:
        """Bits a token; see `bits_per_token`."""
        return bits_per_token(self._model, [(messages, text) for text in texts])

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
