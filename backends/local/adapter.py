"""Adapters in peft's form (LoRA, and rows of the vocabulary), merged into their base as it is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from pasta_async.backends.local.bases import ADAPTER_CONFIG
from pasta_async.backends.local.checkpoint import (
    Checkpoint,
    ConfigReader,
    GenerationDefaults,
    ModelConfig,
    compare_shapes,
    expected_shapes,
    open_safetensors,
    read_json,
    well_formed,
)
from pasta_async.backends.tokenization import TokenizerFiles, add_tags, find_template, named_ends
from pasta_async.errors import UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS

ADAPTER_WEIGHTS = "adapter_model.safetensors"

_ROW_MULTIPLE = 64
"""Rows of a vocabulary that grows are a multiple of this, as SGLang pads and tensor parallelism cuts it."""

_PREFIX = "base_model.model."
_TABLES = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"}
_UNCHANGED = ("True", "False", "gaussian", "orthogonal")  # ways to begin that leave the base as it was
_FREE = {
    *("base_model_name_or_path", "peft_type", "r", "lora_alpha", "use_rslora", "trainable_token_indices"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),  # the tensors say so too
    *("auto_mapping", "ensure_weight_tying", "inference_mode", "init_lora_weights", "lora_dropout"),
    *("megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"),
}
"""Keys of the config that are read here, or say nothing of the result; others must be off."""


def grown_rows(rows: int, needed: int) -> int:
    """Rows of a vocabulary of `rows` that has to hold `needed`: as before if they fit, else a multiple."""
    return rows if needed <= rows else -(-needed // _ROW_MULTIPLE) * _ROW_MULTIPLE


class AdapterFolder(Checkpoint):
    """A folder with an adapter as peft writes it, together with its base, as one checkpoint.

    A matrix becomes `W + scale * B A`, and the adapter's rows take the places of the base's, in float32. In a
    vocabulary that grows, a row without a token is the mean of the base's, so that it is never the best.

    The tokenizer is the folder's; if it has none, the base's with the tags behind its tokens. Chat template,
    end-of-text ids and `generation_config.json` are the folder's as far as it has them, else the base's.

    Raises:
        UnsupportedModelError: A file is missing or broken; the adapter has something else than LoRA of one
            rank and rows of the vocabulary; or it does not fit the base.
    """

    def __init__(self, path: Path, base: Checkpoint) -> None:
        self.path = path
        self.base: Checkpoint = base
        with well_formed(path / ADAPTER_CONFIG):
            given = _checked_config(path / ADAPTER_CONFIG)
            rank = given["r"]
            self._rows = _row_ids(path / ADAPTER_CONFIG, given)
            self._scale: float = given["lora_alpha"] / (rank**0.5 if given.get("use_rslora") else rank)
        needed = max((token for ids in self._rows.values() for token in ids), default=-1) + 1
        rows = grown_rows(base.config.vocab_size, needed)
        self.config: ModelConfig = replace(base.config, vocab_size=rows)
        self.raw: dict[str, Any] = {**base.raw, "vocab_size": rows}
        self._file, self._shapes = open_safetensors(path / ADAPTER_WEIGHTS)
        expected = _expected(self._shapes, base.config, rank, self._rows)
        compare_shapes(path / ADAPTER_WEIGHTS, expected, self._shapes)

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint`; what the adapter changes is float32."""
        weight, module = self.base.tensor(name), name.removesuffix(".weight")
        if module in _TABLES.values():
            return self._table(weight, module)
        if _lora(module, "A") not in self._shapes:
            return weight
        up, down = self._taken(_lora(module, "B")), self._taken(_lora(module, "A"))
        return weight.float().addmm(up, down, alpha=self._scale)

    def tokenizer(self) -> TokenizerFiles:
        """See `Checkpoint`."""
        base, complete = self.base.tokenizer(), (self.path / "tokenizer.json").is_file()
        own = TokenizerFiles.read(self.path) if complete else self._with_tags(base)
        ends = tuple(dict.fromkeys([*own.end_ids, *base.end_ids]))
        return own._replace(template=own.template or base.template, end_ids=ends)

    def generation_defaults(self) -> GenerationDefaults:
        """See `Checkpoint`; the base's, unless the folder says something."""
        own = (self.path / "generation_config.json").is_file()
        return super().generation_defaults() if own else self.base.generation_defaults()

    def _with_tags(self, base: TokenizerFiles) -> TokenizerFiles:
        """The base's tokenizer, with tags if the adapter has rows for them."""
        own = base._replace(template=find_template(self.path, {}), end_ids=tuple(named_ends(self.path)))
        if not self._rows:
            return own
        add_tags(own.tokenizer, own.config)
        tags = {entry["id"] for entry in own.tokenizer["added_tokens"] if entry["content"] in TAG_TOKENS}
        rows = set[int]().union(*self._rows.values())
        if rows != tags:
            raise UnsupportedModelError(
                f"{self.path}: its rows {sorted(rows)} are not those of the tags behind its base's tokens, "
                f"{sorted(tags)}: put the tokenizer.json of the adapter beside it"
            )
        return own

    def _table(self, weight: torch.Tensor, module: str) -> torch.Tensor:
        """The embedding, or the output layer, `[rows, hidden]`."""
        old, more = weight.float(), self.config.vocab_size - len(weight)
        grown = torch.cat([old, old.mean(0, keepdim=True).expand(more, -1)]) if more else old.clone()
        if ids := self._rows.get(module):
            grown[ids] = self._taken(_row_name(module))
        return grown

    def _taken(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name).float()


def _lora(module: str, part: str) -> str:
    return f"{_PREFIX}{module}.lora_{part}.weight"


def _row_name(module: str) -> str:
    return f"{_PREFIX}{module}.token_adapter.trainable_tokens_delta"  # whole rows, though peft says delta


def _checked_config(path: Path) -> dict[str, Any]:
    """The config of an adapter that can be merged."""
    raw = read_json(path)
    kinds = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": _UNCHANGED}
    wrong = [key for key, kept in kinds.items() if str(raw.get(key, kept[0])) not in kept]
    wrong += [key for key, value in raw.items() if value and key not in _FREE and key not in kinds]
    if wrong:
        said = ", ".join(f"{key} is {raw[key]!r:.60}" for key in wrong)
        raise UnsupportedModelError(f"{path}: {said}; only LoRA of one rank, and trained rows, can be merged")
    for key in ("r", "lora_alpha"):
        ConfigReader(path, raw).number(key)
    return raw


def _row_ids(path: Path, raw: dict[str, Any]) -> dict[str, list[int]]:
    """The ids whose rows the adapter has, by the module that the rows are of."""
    given: Any = raw.get("trainable_token_indices") or {}
    listed = cast("dict[str, list[Any]]", {"embed_tokens": given} if isinstance(given, list) else given)
    for name, ids in listed.items():
        numbers = all(isinstance(token, int) and 0 <= token < 2**31 for token in ids)
        if name not in _TABLES or not numbers or len(set(ids)) < len(ids):
            raise UnsupportedModelError(f"{path}: trainable_token_indices of {name} are {ids!r:.80}: no rows")
    return {_TABLES[name]: ids for name, ids in listed.items()}


def _expected(
    found: Iterable[str], config: ModelConfig, rank: int, rows: dict[str, list[int]]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the adapter's tensors: two for each matrix of a layer that is adapted, and the rows."""
    shapes = expected_shapes(config)
    modules = {name.removeprefix(_PREFIX).partition(".lora_")[0] for name in found if ".lora_" in name}
    expected = {_row_name(module): (len(ids), config.hidden) for module, ids in rows.items()}
    for module in modules:
        shape = shapes.get(f"{module}.weight", ())
        if len(shape) == 2 and module not in _TABLES.values():
            expected |= {_lora(module, "A"): (rank, shape[1]), _lora(module, "B"): (shape[0], rank)}
    return expected
