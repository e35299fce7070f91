"""What packing saves in training: a step on packed views against a step on the same views one by one.

    python -m pasta_async.evals.costs packing
    python -m pasta_async.evals.costs packing --shape 1b --dtype bfloat16 --row-tokens 4096   # with a GPU

Both train on the same targets, with the same kernel and rows of at most the same length. Packed, the views of
a document share their contexts in one tree; unpacked, every view is a sequence of its own, several of them
side by side in a row. The weights are random; the time of a step does not depend on them. The bound is the
theoretical sharing: tokens of all views over tokens of the trees.
The best of several steps counts, since others use a machine too.
"""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from transformers import LlamaConfig, LlamaForCausalLM

from pasta_async.evals.commands import Command, Settings, command
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.lang import Chunk, Document, Promise, Sync, Text
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.training.corpus.tokens import encode_views
from pasta_async.training.packing import Trie, pack_views
from pasta_async.training.trainer.rows import (
    choose_attention,
    deal_rows,
    log_probabilities,
    pack_row,
    row_length,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.training.trainer.rows import Row

__all__ = ["StepSettings", "main", "measure_steps"]

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 1024}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    # Llama 3.2 1B
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128256}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
}


class StepSettings(Settings):
    """What is measured."""

    shape: Literal["tiny", "1b"] = Field(default="tiny", description="shape of the model (Llama)")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of weights and computation")
    row_tokens: int = Field(default=1024, ge=128, description="tokens of a row")
    documents: int = Field(default=4, ge=1, description="documents of a step")
    prompt_tokens: int = Field(default=120, ge=1, description="tokens of a prompt")
    rounds: int = Field(default=2, ge=1, description="rounds of a document, each ended by a sync")
    chunks: int = Field(default=3, ge=1, description="chunks of a round")
    chunk_tokens: int = Field(default=40, ge=1, description="tokens of a chunk")
    main_tokens: int = Field(default=30, ge=1, description="tokens that main writes in each round")
    repeats: int = Field(default=5, ge=1, description="steps of either kind, taken in turns, after a warm-up")
    threads: int = Field(default=0, ge=0, description="CPU threads (0: torch's own number)")
    out: Path | None = Field(default=None, description="file for the raw figures, as JSON lines")


class _NumberEncoder:
    """Encodes a text of numbers as these numbers; tags are the ids above them."""

    def __init__(self, size: int) -> None:
        self.end = size - 1
        self.tags: Mapping[str, int] = {tag: self.end - 1 - k for k, tag in enumerate(TAG_TOKENS)}

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def token_bytes(self, token: int) -> bytes:
        return f"{token} ".encode()


def measure_steps(settings: StepSettings) -> list[dict[str, Any]]:
    """Time packed and unpacked steps in turns, on a GPU if there is one; where, and a row for each."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = _model(settings, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    trees = dict(zip(("packed", "unpacked"), _documents(settings), strict=True))
    rows = {form: _rows(each, settings.row_tokens, device) for form, each in trees.items()}
    seconds: dict[str, list[float]] = {form: [] for form in rows}
    for _ in range(1 + settings.repeats):
        for form, part in rows.items():
            seconds[form].append(_step(model, optimizer, part, device))
    tokens = {form: sum(map(len, each)) for form, each in trees.items()}
    best = {form: min(taken[1:]) for form, taken in seconds.items()}
    figures = [
        {
            "views": form,
            "rows": len(rows[form]),
            "tokens computed": tokens[form],
            "tokens of views": tokens["unpacked"],
            "targets": sum(len(row.labels) for row in rows[form]),
            "ms a step": 1000 * best[form],
            "of views a second": tokens["unpacked"] / best[form],
        }
        for form in rows
    ]
    where = {**environment(), "device": str(device), "settings": settings.model_dump(mode="json")}
    where |= {"sharing": tokens["unpacked"] / tokens["packed"], "speedup": best["unpacked"] / best["packed"]}
    return [where, *figures]


def _model(settings: StepSettings, device: torch.device) -> Any:
    shape = LlamaConfig(**SHAPES[settings.shape], max_position_embeddings=1 << 17)
    model: Any = LlamaForCausalLM(shape)
    model = model.to(device, getattr(torch, settings.dtype)).train()
    model.set_attn_implementation(choose_attention("auto", device))
    return model


def _documents(settings: StepSettings) -> tuple[list[Trie], list[Trie]]:
    """The trees of all documents, and those of all views."""
    size = SHAPES[settings.shape]["vocab_size"]
    encoder = _NumberEncoder(size)
    source = torch.Generator().manual_seed(0)

    def text(count: int) -> str:
        numbers = torch.randint(0, size - 8, (count,), generator=source).tolist()
        return "".join(f"{number} " for number in numbers)

    def promise() -> Promise:
        return Promise(text(1), settings.chunk_tokens, Chunk((Text(text(settings.chunk_tokens)),)))

    packed: list[Trie] = []
    unpacked: list[Trie] = []
    for _ in range(settings.documents):
        prompt = encoder.encode(text(settings.prompt_tokens))
        nodes: list[Any] = []
        for _ in range(settings.rounds):
            nodes.append(Text(text(settings.main_tokens)))
            nodes += (promise() for _ in range(settings.chunks))
            nodes.append(Sync())
        document = Document((*nodes, Text(text(settings.main_tokens))))
        packed.append(pack_views(encoder, prompt, document))
        for view in encode_views(encoder, document):
            alone = Trie()
            alone.extend(alone.extend(-1, [*prompt, *view.context]), view.target, target=True)
            unpacked.append(alone)
    return packed, unpacked


def _rows(trees: Sequence[Trie], capacity: int, device: torch.device) -> list[Row]:
    dealt = deal_rows([len(tree) for tree in trees], capacity, world=1)
    rows = [[trees[place] for place in row] for row in dealt]
    few = device.type == "cuda"
    lengths = [row_length(sum(map(len, row)), capacity, few) for row in rows]
    return [pack_row(row, length, 0, device) for row, length in zip(rows, lengths, strict=True)]


def _step(model: Any, optimizer: torch.optim.Optimizer, rows: Sequence[Row], device: torch.device) -> float:
    """Seconds of one update: forward and backward over the rows, and the optimizer."""
    targets = sum(len(row.labels) for row in rows)
    _wait(device)
    start = time.perf_counter()
    for row in rows:
        (-log_probabilities(model, row).sum() / targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _run(settings: StepSettings) -> None:
    where, *figures = measure_steps(settings)
    print(markdown_table(figures))
    print(f"\n{where['speedup']:.2f} times as fast packed; the views share {where['sharing']:.2f} times")
    if settings.out:
        write_rows(settings.out, [where, *figures])


main: Command = command(StepSettings, _run, "costs packing", __doc__)
