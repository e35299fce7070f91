"""The model to train: loaded from a checkpoint folder, with tag tokens and adapters; sharded; exported."""

# torch, transformers and peft leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from pasta_async.backends.local.adapter import ADAPTER_WEIGHTS, grown_rows
from pasta_async.backends.local.checkpoint import CheckpointFolder, expected_shapes
from pasta_async.backends.tokenization import TextCodec, named_ends
from pasta_async.errors import UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.training.trainer.operators import embed
from pasta_async.training.trainer.processes import Processes
from pasta_async.training.trainer.rows import SHARDED, compute_losses

REFUSAL = "training does not support it"

_MEANINGS = (
    " I promise to write about the topic",
    " with a length of so many tokens",
    " and so the promise ends.",
    " Begin the promised part",
    " Stop, the part is finished.",
    " Wait for every part, then continue",
)
"""What new tags start from, in the order of `TAG_TOKENS`."""

_ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Makes the model of a run, empty or with the base weights."""

    folder: Path
    """Checkpoint folder of a Llama, Qwen2 or Qwen3."""
    tag_ids: tuple[int, ...]
    """Ids of the six tag tokens in the run's tokenizer."""
    lora_rank: int = 0
    lora_alpha: float = 16.0
    """Scale of the adapters."""
    adapter: Path | None = None
    """Folder of an adapter of this trainer that is trained on, instead of a new one."""
    unused: frozenset[int] = frozenset()
    """Ids of the tags that are in no example."""

    def empty(self) -> Any:
        """The model with memory but without weights, on the CPU; untouched memory costs nothing."""
        return self._finished(self._skeleton().to_empty(device="cpu"))

    def loaded(self) -> Any:
        """The model with the base weights, float32, on the CPU, and rows for tags that are new.

        Raises:
            UnsupportedModelError: Weights are missing, unknown or of a wrong shape.
        """
        checkpoint = CheckpointFolder(self.folder, REFUSAL)
        shape = checkpoint.config
        weights = {name: checkpoint.tensor(name).to(torch.float32) for name in expected_shapes(shape)}
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & weights.keys():
            weights[name] = self._grown(weights[name])
        if shape.tied:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        model = self._skeleton()
        model.load_state_dict(weights, assign=True)
        return self._finished(model)

    def _rows(self, old: int) -> int:
        """Rows of the vocabulary with the tags."""
        return grown_rows(old, max(self.tag_ids) + 1)

    def _skeleton(self) -> Any:
        config = AutoConfig.from_pretrained(self.folder)
        config.vocab_size = self._rows(config.vocab_size)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    def _grown(self, weight: torch.Tensor) -> torch.Tensor:
        """Rows for new tags in [rows, hidden]: as far from the mean row as others, each in its own direction.

        That is halfway between what the tag means (the mean of a description's rows) and a random direction.
        They share what all rows share: else tags can be likely where nothing asks for them. Spare rows, and
        those of unused tags, are the mean of all rows: their logit, the mean of all, is never the best.
        """
        codec, chance = TextCodec.from_folder(self.folder), torch.Generator().manual_seed(0)
        missing = self._rows(len(weight)) - len(weight)
        grown = torch.cat([weight, weight.mean(0, keepdim=True).expand(missing, -1)])
        used = weight[: codec.vocab_size]
        center, spread = used.mean(0), used.std(0)
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
        """The ids of the tags that the base model lacks, and what they mean."""
        known = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tags = zip(TAG_TOKENS, self.tag_ids, _MEANINGS, strict=True)
        return {token: means for tag, token, means in tags if known.token_to_id(tag) is None}

    def _finished(self, model: Any) -> Any:
        model.tie_weights()
        rotary = model.model.rotary_emb
        model.model.rotary_emb = type(rotary)(model.config)  # its buffers are in no checkpoint
        model.config.use_cache = False
        return (self._adapted(model) if self.lora_rank else model).train()

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
                raise UnsupportedModelError(f"{self.adapter} is no adapter of this trainer; {REFUSAL}")
        embedding = adapted.get_input_embeddings().token_adapter
        embedding.forward = partial(embed, embedding)
        return adapted


def shard(model: Any, processes: Processes, dtype: torch.dtype, share: bool) -> None:
    """Shard a model, of the same shape in every process, over them (FSDP2), and move it to their devices.

    It computes in `dtype`; trained weights, gradients and optimizer stay float32. With `share` all take the
    weights of the first process; else a checkpoint will bring them.
    """
    alone = processes.world == 1  # and keeps frozen weights as they are computed with
    frozen = {param for param in model.parameters() if alone and not param.requires_grad}
    for param in frozen:
        param.data = param.data.to(processes.device, dtype)
    weights = dict(model.named_parameters()) if processes.first else {}  # tied ones once
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for part in (*model.get_decoder().layers, model):
        fully_shard(part, mesh=processes.mesh, mp_policy=policy, ignored_params=frozen)
    setattr(model, SHARDED, partial(compute_losses, model))
    register_fsdp_forward_method(model, SHARDED)
    if share:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
        whole = {name: value.detach() for name, value in weights.items() if value not in frozen}
        if wrong := set_model_state_dict(model, whole, options=options).unexpected_keys:
            raise AssertionError(f"the processes disagree about {', '.join(wrong)}")


def export_model(
    model: Any,
    base: BaseModel,
    tokenizer: Path,
    end: int,
    out: Path,
    dtype: str,
    processes: Processes,
    start_share: float = 0.0,
) -> None:
    """Write a sharded model to the folder `out`, with its tokenizer (a folder), adapters merged.

    Every process must call it; the first one writes. A folder that is there is replaced when the new one is
    complete. Adapters and the tags' rows also go into `adapter` beside it, in peft's format. `end` ends an
    answer: it stands before the end-of-text ids of `base`, which the model was made from, and whose weights
    have `start_share` in what is written. Weights are of `dtype`: bfloat16, float16 or float32.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    weights = get_model_state_dict(model, options=options)
    if processes.first:
        whole = base.loaded() if base.lora_rank or start_share else base.empty()
        if start_share:
            start, new = whole.state_dict(), base.lora_rank and base.adapter is None
            weights = {  # a new adapter is B A with a B of 0 at the start: its mean is that of B alone
                name: value if new and ".lora_A." in name else start[name].lerp(value, 1 - start_share)
                for name, value in weights.items()
            }
        whole.load_state_dict(weights, strict=not base.lora_rank)
        generation = _generation(base.folder, end)
        if base.lora_rank:
            learned = {name: param for name, param in whole.named_parameters() if param.requires_grad}
            state = {name: param.detach().to(getattr(torch, dtype)) for name, param in learned.items()}
            with _replaced(out.with_name("adapter"), tokenizer) as folder:
                whole.save_pretrained(folder, state_dict=state, save_embedding_layers=False)
                generation.save_pretrained(folder)
            whole = whole.merge_and_unload()
        whole = whole.to(getattr(torch, dtype))
        whole.config.use_cache = True
        whole.generation_config = generation
        with _replaced(out, tokenizer) as folder:
            whole.save_pretrained(folder)
    processes.wait()


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
    """The base model's, with the end of an answer first among the ids that end a text."""
    file = folder / "generation_config.json"
    generation: Any = GenerationConfig.from_pretrained(folder) if file.is_file() else GenerationConfig()
    generation.eos_token_id = [*dict.fromkeys([end, *named_ends(folder)])]
    return generation
