"""Models by path: folders, GGUF files, and adapters in peft's form, merged into their bases at loading."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from pasta_async.backends.local.checkpoint import (
    Checkpoint,
    ModelConfig,
    Read,
    compare_shapes,
    expected_shapes,
    model_config,
    open_folder,
    open_safetensors,
    read_json,
    well_formed,
)
from pasta_async.backends.local.pull import ADAPTER_CONFIG, SHIPPED_MODELS, base_path, is_adapter
from pasta_async.backends.local.stored import stored_object
from pasta_async.errors import UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.model_folder import File, TokenizerFiles, find_template, named_ends, validated
from pasta_async.tokenizer import add_tags

if TYPE_CHECKING:
    import torch

    from pasta_async.backends.local.gguf_file import GGUFFile

ADAPTER_WEIGHTS = "adapter_model.safetensors"

_ROW_MULTIPLE = 64
"""A vocabulary grows to a multiple of so many rows, as SGLang pads and tensor parallelism cuts it."""

_PREFIX = "base_model.model."
_TABLES = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"}
_IGNORED_KEYS = {
    *("base_model_name_or_path", "target_modules", "exclude_modules", "layers_to_transform"),
    *("layers_pattern", "auto_mapping", "ensure_weight_tying", "inference_mode", "lora_dropout"),
    *("megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"),
}
"""Keys of the config that do not change the result, or that the tensors tell as well; others must be off."""

_RowId = Annotated[int, Field(strict=True, ge=0, lt=2**20)]


def open_checkpoint(path: Path, base: Path | None = None) -> Checkpoint:
    """Open a model folder, a GGUF file, the folder of an adapter, or a folder that only names a base.

    Args:
        path: The folder or the file.
        base: A base to use instead of the one that the folder names.

    Raises:
        UnsupportedModelError: There is none, or the engine cannot compute the model.
        ModuleNotFoundError: It is a GGUF file, and the package `gguf` is not installed.
    """
    with well_formed(path):
        whole = _open_whole(base or base_path(path))
        return open_adapter(path, whole) if is_adapter(path) else whole


def _open_whole(path: Path) -> Checkpoint:
    if path.is_file():
        return _open_gguf(path)
    if not path.is_dir():
        named = ", ".join(SHIPPED_MODELS)
        raise UnsupportedModelError(
            f"there is no model folder or GGUF file {path}, nor a model that ships ({named})"
        )
    return open_folder(path)


def _open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file. Config and tokenizer are cached, for to read 150,000 tokens of it takes a second."""

    @cache
    def opened() -> GGUFFile:
        from pasta_async.backends.local.gguf_file import GGUFFile

        return GGUFFile(path)

    def tokenizer_files() -> TokenizerFiles:
        files = stored_object(path, "tokenizer", lambda: opened().tokenizer_files()._asdict())
        return TokenizerFiles(**files)._replace(end_ids=tuple(files["end_ids"]))

    raw = stored_object(path, "config", lambda: opened().raw)
    return Checkpoint(
        path=path,
        raw=raw,
        config=model_config(raw, path),
        sources=(path,),
        tensor=lambda name: opened().tensor(name),
        tokenizer_files=tokenizer_files,
        generation_file=path / "generation_config.json",  # there is none: the path is that of a file
    )


def grown_rows(rows: int, needed: int) -> int:
    """Rows of a vocabulary that has `rows` and needs `needed`: the same if they fit, else rounded up."""
    return rows if needed <= rows else _ROW_MULTIPLE * math.ceil(needed / _ROW_MULTIPLE)


class _AdapterConfig(File):
    """An `adapter_config.json` that can be merged."""

    peft_type: Literal["LORA"] = "LORA"
    bias: Literal["none"] = "none"
    init_lora_weights: Literal[True, False, "gaussian", "orthogonal"] = True  # these leave the base as it was
    r: PositiveInt
    lora_alpha: PositiveFloat
    trainable_token_indices: dict[Literal["embed_tokens", "lm_head"], list[_RowId]] = Field(
        default_factory=dict[Literal["embed_tokens", "lm_head"], list[int]]
    )

    @field_validator("trainable_token_indices", mode="before")
    @classmethod
    def _of_the_embedding(cls, given: Any) -> Any:
        """A mapping; peft also takes a list, which is that of the embedding."""
        return {"embed_tokens": cast("list[Any]", given)} if isinstance(given, list) else given or {}

    @field_validator("trainable_token_indices")
    @classmethod
    def _each_once(cls, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        if any(len(set(ids)) < len(ids) for ids in rows.values()):
            raise ValueError("an id is there twice")
        return rows

    @property
    def scale(self) -> float:
        """The factor of the product of a layer's two matrices."""
        return self.lora_alpha / self.r

    @property
    def rows(self) -> dict[str, list[int]]:
        """The ids whose rows the adapter has, by the module that the rows are of."""
        return {_TABLES[name]: ids for name, ids in self.trainable_token_indices.items()}

    @classmethod
    def read(cls, path: Path) -> _AdapterConfig:
        raw = read_json(path)
        if wrong := [key for key in raw.keys() - cls.model_fields.keys() - _IGNORED_KEYS if raw[key]]:
            settings = ", ".join(f"{key} is {raw[key]!r:.60}" for key in sorted(wrong))
            raise UnsupportedModelError(
                f"{path}: {settings}; only LoRA of one rank, and trained rows, can be merged"
            )
        return validated(cls, {key: value for key, value in raw.items() if value is not None}, path)


def open_adapter(path: Path, base: Checkpoint) -> Checkpoint:
    """Open a folder with an adapter as peft writes it, together with its base, as one checkpoint.

    A matrix becomes `W + scale * B A`, and the adapter's rows take the places of the base's, in float32. In a
    vocabulary that grows, a row without a token is the mean of the base's, so that it is never the best.

    The tokenizer is the folder's; if it has none, the base's with the tags behind its tokens. Chat template
    and `generation_config.json` are the folder's, else the base's; end-of-text ids are those of both.

    Raises:
        UnsupportedModelError: A file is missing or broken; the adapter has something else than LoRA of one
            rank and rows of the vocabulary; or it does not fit the base.
    """
    config = _AdapterConfig.read(path / ADAPTER_CONFIG)
    read, shapes = open_safetensors(path / ADAPTER_WEIGHTS)
    expected = _expected_shapes(shapes, base.config, config.r, config.rows)
    compare_shapes(path / ADAPTER_WEIGHTS, expected, shapes)
    needed = max((token for ids in config.rows.values() for token in ids), default=-1) + 1
    rows = grown_rows(base.config.vocab_size, needed)
    has_head = _TABLES["lm_head"] in config.rows
    # One that was trained on a base with both has rows of both. On a base without, they part here.
    tied = base.config.tied and not has_head
    adapter = _Adapter(path, base, config, rows, read, shapes.keys())
    generation_file = path / base.generation_file.name
    return Checkpoint(
        path=path,
        raw={**base.raw, "vocab_size": rows, "tie_word_embeddings": tied},
        config=base.config.model_copy(update={"vocab_size": rows, "tied": tied}),
        sources=(*base.sources, path / ADAPTER_CONFIG, path / ADAPTER_WEIGHTS),
        tensor=adapter.merged,
        tokenizer_files=adapter.tokenizer_files,
        generation_file=generation_file if generation_file.is_file() else base.generation_file,
    )


@dataclass(frozen=True, slots=True)
class _Adapter:
    """An opened adapter."""

    path: Path
    base: Checkpoint
    config: _AdapterConfig
    vocab_size: int
    """Rows of the vocabulary with the adapter."""
    read: Read
    """Reads a tensor of its file."""
    names: Collection[str]
    """Names of the tensors in its file."""

    def merged(self, name: str) -> torch.Tensor:
        """A tensor of the base, in float32 if the adapter changes it."""
        module = name.removesuffix(".weight")
        # An output layer that only the adapter has apart begins as the embedding.
        is_parted = self.base.config.tied and module == _TABLES["lm_head"]
        weight = self.base.tensor(f"{_TABLES['embed_tokens']}.weight" if is_parted else name)
        if module in _TABLES.values():
            return self._table(weight, module)
        if _lora(module, "A") not in self.names:
            return weight
        up, down = (self.read(_lora(module, part)).float() for part in "BA")
        return weight.float().addmm(up, down, alpha=self.config.scale)

    def tokenizer_files(self) -> TokenizerFiles:
        """The folder's files, completed by the base's."""
        with well_formed(self.path):
            base = self.base.tokenizer_files()
            complete = (self.path / "tokenizer.json").is_file()
            files = TokenizerFiles.read(self.path) if complete else self._with_tags(base)
            embedded = self.config.rows.get(_TABLES["embed_tokens"], ())
            if (
                not _tag_ids(files).isdisjoint(embedded)
                and _TABLES["lm_head"] not in self.config.rows
                and not self.base.config.tied
            ):
                raise UnsupportedModelError(
                    f"{self.path}: the tags have no rows of the output layer, which its base has apart from "
                    "the embedding"
                )
            ends = tuple(dict.fromkeys([*files.end_ids, *base.end_ids]))
            return files._replace(template=files.template or base.template, end_ids=ends)

    def _with_tags(self, base: TokenizerFiles) -> TokenizerFiles:
        """The base's tokenizer, with tags if the adapter has rows for them."""
        files = base._replace(template=find_template(self.path, {}), end_ids=named_ends(self.path))
        if not self.config.rows:
            return files
        add_tags(files.tokenizer, files.config)
        tags = _tag_ids(files)
        rows = set[int]().union(*self.config.rows.values())
        if rows != tags:
            raise UnsupportedModelError(
                f"{self.path}: its rows {sorted(rows)} are not those of the tags behind its base's tokens, "
                f"{sorted(tags)}: put the tokenizer.json of the adapter beside it"
            )
        return files

    def _table(self, weight: torch.Tensor, module: str) -> torch.Tensor:
        """The embedding, or the output layer, `[rows, hidden]`."""
        import torch

        old = weight.float()
        more = self.vocab_size - len(weight)
        grown = torch.cat([old, old.mean(0, keepdim=True).expand(more, -1)]) if more else old.clone()
        if ids := self.config.rows.get(module):
            grown[ids] = self.read(_row_name(module)).float()
        return grown


def _tag_ids(files: TokenizerFiles) -> set[int]:
    tokens = files.tokenizer.get("added_tokens", ())
    return {entry["id"] for entry in tokens if entry["content"] in TAG_TOKENS}


def _lora(module: str, part: str) -> str:
    return f"{_PREFIX}{module}.lora_{part}.weight"


def _row_name(module: str) -> str:
    return f"{_PREFIX}{module}.token_adapter.trainable_tokens_delta"  # not a delta: whole rows


def _expected_shapes(
    names: Iterable[str], config: ModelConfig, rank: int, rows: Mapping[str, list[int]]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the adapter's tensors: two for each matrix of a layer that is adapted, and the rows."""
    shapes = expected_shapes(config)
    modules = {name.removeprefix(_PREFIX).partition(".lora_")[0] for name in names if ".lora_" in name}
    expected = {_row_name(module): (len(ids), config.hidden) for module, ids in rows.items()}
    for module in modules:
        shape = shapes.get(f"{module}.weight", ())
        if len(shape) == 2 and module not in _TABLES.values():
            expected |= {_lora(module, "A"): (rank, shape[1]), _lora(module, "B"): (shape[0], rank)}
    return expected
