"""The model to train: its tokenizer with the tags, its weights, adapters, and the export.

A model folder gets the six tag tokens and a chat template that knows both forms; its weights get rows for
these tokens, and perhaps adapters.
"""

# torch, transformers and peft leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, GenerationConfig

from pasta_async.backends.local.adapter import ADAPTER_WEIGHTS, grown_rows
from pasta_async.backends.local.checkpoint import open_folder, read_json
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.model_folder import find_template, named_ends, read_object, write_json
from pasta_async.tokenizer import Tokenizer, add_tags
from pasta_async.training.rows import embed

# --- the tokenizer

_COPIED = ("special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model")

MARK = "pasta\n"
"""The end of a prompt that asks for PASTA-LANG, if the base's template does not look at `pasta`. The prompt
for the baseline (`pasta=false`) stays as the base model knows it."""

_SWITCH = (
    "{%+ if add_generation_prompt and (pasta is not defined or pasta) %}"
    "{{ " + json.dumps(MARK) + " }}"
    "{% endif %}"
)


def write_tokenizer(folder: Path, out: Path, template: str | None = None, both: bool = False) -> None:
    """Write the tokenizer of a model folder to `out`, with the tag tokens and perhaps another chat template.

    Files are changed as little as possible: no library, which may rebuild them, loads and saves them. With
    `both`, prompts must differ for PASTA-LANG and for the baseline: a template that does not look at `pasta`
    then gets a switch at its end, which adds a line that says "pasta" unless `pasta=false`.

    Raises:
        UnsupportedModelError: A file is missing or malformed.
        InvalidRequestError: There is no chat template.
    """
    tokenizer = read_json(folder / "tokenizer.json")
    config = read_object(folder / "tokenizer_config.json") or {}
    template = template or find_template(folder, config)
    if not template:
        raise InvalidRequestError(
            f"{folder} has no chat template, so its prompts have no form: name one with --chat-template"
        )
    if both and "pasta" not in template:
        template = re.sub(r"\r?\n\Z", "", template) + _SWITCH  # Jinja drops the newline at a template's end
    add_tags(tokenizer, config)
    config.pop("chat_template", None)
    out.mkdir(parents=True, exist_ok=True)
    for name in filter(lambda name: (folder / name).is_file(), _COPIED):
        shutil.copyfile(folder / name, out / name)
    write_json(out / "tokenizer.json", tokenizer)
    write_json(out / "tokenizer_config.json", config)
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")


# --- the weights

_MEANINGS = (
    " I promise to write about the topic",
    " with a length of so many tokens",
    " and so the promise ends.",
    " Begin the promised part",
    " Stop, the part is finished.",
    " Wait for every part, then continue",
)
"""Descriptions whose embeddings new tags start from, in the order of `TAG_TOKENS`."""

_ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class ModelMaker:
    """Makes the model of a run."""

    folder: Path
    """Checkpoint folder of a Llama, Qwen2 or Qwen3."""
    tag_ids: tuple[int, ...]
    """Ids of the six tag tokens in the run's tokenizer."""
    lora_rank: int = 0
    lora_alpha: float = 16.0
    """Scale of the adapters."""
    adapter: Path | None = None
    """Folder of an adapter of this trainer that is trained further, instead of a new one."""
    unused: frozenset[int] = frozenset()
    """Ids of the tags that are in no example."""

    def make(self) -> Any:
        """The model with the base weights, float32, on the CPU, and rows for tags that are new.

        Raises:
            UnsupportedModelError: Weights are missing, unknown or of a wrong shape.
        """
        open_folder(self.folder)  # refuses what cannot be trained
        model: Any = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        for layer in (embedding,) if model.config.tie_word_embeddings else (embedding, head):
            layer.weight = torch.nn.Parameter(self._grown(layer.weight.detach()))
        embedding.num_embeddings = head.out_features = model.config.vocab_size = len(embedding.weight)
        model.tie_weights()
        model.config.use_cache = False
        return (self._adapted(model) if self.lora_rank else model).train()

    def _grown(self, weight: torch.Tensor) -> torch.Tensor:
        """A table [rows, hidden] with rows for new tags, each as far from the mean row as the others are.

        A row's direction is halfway between what the tag means (the mean of a description's rows) and a
        random one. It starts from the mean row: a tag that lacks what all rows share can be likely where
        nothing asks for it. Spare rows and unused tags get the mean row: their logit, the mean, is never the
        best.
        """
        codec = Tokenizer.from_folder(self.folder)
        chance = torch.Generator().manual_seed(0)
        missing = grown_rows(len(weight), max(self.tag_ids) + 1) - len(weight)
        grown = torch.cat([weight, weight.mean(0, keepdim=True).expand(missing, -1)])
        used = weight[: codec.vocab_size]
        center = used.mean(0)
        spread = used.std(0)
        distance = (used - center).norm(dim=1).mean()
        for token, means in self.new_tags().items():
            if token in self.unused:
                grown[token] = weight.mean(0)
            else:
                meaning = functional.normalize(weight[codec.encode(means)].mean(0) - center, dim=0)
                drawn = functional.normalize(torch.randn(len(spread), generator=chance) * spread, dim=0)
                grown[token] = center + distance * functional.normalize(meaning + drawn, dim=0)
        return grown

    def new_tags(self) -> dict[int, str]:
        """The ids of the tags that the base model lacks, and what they mean.

        A vocabulary may have one of them as an ordinary token, whose row has learned something.
        """
        known = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tags = zip(TAG_TOKENS, self.tag_ids, _MEANINGS, strict=True)
        return {token: means for tag, token, means in tags if known.token_to_id(tag) is None}

    def _adapted(self, model: Any) -> Any:
        """Adapters in every matrix of the layers; of the embeddings only the tags' rows are trained."""
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

        embeddings = ["embed_tokens"] if model.config.tie_word_embeddings else ["embed_tokens", "lm_head"]
        adapters = LoraConfig(
            r=self.lora_rank,
            lora_alpha=self.lora_alpha,  # pyright: ignore[reportArgumentType] - it computes with any number
            target_modules=_ADAPTED,
            trainable_token_indices={name: list(self.tag_ids) for name in embeddings},
            task_type="CAUSAL_LM",
        )
        adapted = get_peft_model(model, adapters)
        if self.adapter is not None:
            learned = load_file(self.adapter / ADAPTER_WEIGHTS)
            if set_peft_model_state_dict(adapted, learned).unexpected_keys:
                raise UnsupportedModelError(f"{self.adapter} is no adapter of this trainer")
        embedding = adapted.get_input_embeddings().token_adapter
        embedding.forward = partial(embed, embedding)
        return adapted


def export_model(
    model: Any, base: ModelMaker, tokenizer: Path, end: int, out: Path, start_share: float = 0.0
) -> None:
    """Write a trained model to the folder `out` in float32, adapters merged.

    Half precision would round away what a small learning rate has changed. A folder that is there is replaced
    when the new one is complete. Adapters and the tags' rows also go into `adapter` beside it, in peft's
    format.

    Args:
        model: Trained, from `base.make()`.
        base: The base that the model was made from.
        tokenizer: Folder of the model's tokenizer.
        end: Id that ends an answer: it stands before the end-of-text ids of the base.
        out: Folder to write.
        start_share: Share of the weights at the start in those that are written. An adapter that is trained
            further is averaged matrix by matrix, A and B apart.
    """
    whole = base.make()
    trained = {name: param.detach().cpu() for name, param in model.named_parameters() if param.requires_grad}
    if start_share:
        start = dict(whole.named_parameters())
        # A new adapter's product B A starts with B = 0: to average the product is to average B alone.
        fixed = ".lora_A." if base.lora_rank and base.adapter is None else None
        trained = {
            name: value if fixed and fixed in name else start[name].detach().lerp(value, 1 - start_share)
            for name, value in trained.items()
        }
    with torch.no_grad():
        for name, param in whole.named_parameters():
            if name in trained:
                param.copy_(trained[name])
    generation = _generation(base.folder, end)
    if base.lora_rank:
        # peft keeps the names as a set, whose order differs from run to run: files must not.
        whole.peft_config["default"].target_modules = sorted(_ADAPTED)
        with _replaced(out.with_name("adapter"), tokenizer) as folder:
            whole.save_pretrained(folder, state_dict=trained, save_embedding_layers=False)
            generation.save_pretrained(folder)
        whole = whole.merge_and_unload()
    whole.config.use_cache = True
    whole.generation_config = generation
    with _replaced(out, tokenizer) as folder:
        whole.save_pretrained(folder)


@contextmanager
def _replaced(out: Path, start: Path) -> Generator[Path]:
    """A folder that begins as a copy of `start`, and takes the place of `out` when it is complete."""
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(start, partial)
    yield partial
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)


def _generation(folder: Path, end: int) -> GenerationConfig:
    """The base model's generation config, with `end` first among the ids that end a text."""
    file = folder / "generation_config.json"
    generation: Any = GenerationConfig.from_pretrained(folder) if file.is_file() else GenerationConfig()
    generation.eos_token_id = [*dict.fromkeys([end, *named_ends(folder)])]
    return generation
