"""Train a small Llama from scratch on the synthetic task: `python -m pasta_async.training.pretrain`.

It is the base model of the shipped one. It learns both forms, PASTA-LANG and the plain baseline, so that it
brings what a large base model has anyway: it can follow markup. A run is seeded, and one that was interrupted
goes on from its checkpoint exactly as if nothing had happened.

Muon (Jordan et al., 2024) trains the matrices inside the layers, AdamW the rest.
"""

# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import copy
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    get_linear_schedule_with_warmup,  # pyright: ignore[reportUnknownVariableType]
)

from pasta_async.cli.command import run_command
from pasta_async.jobs import progress
from pasta_async.lang.document import Document, Text
from pasta_async.training.corpus.records import StrictModel
from pasta_async.training.packing import Trie, pack_plain, pack_views
from pasta_async.training.synthetic.families import FAMILIES, make_name, sample
from pasta_async.training.synthetic.records import parallel_chain
from pasta_async.training.tokenizer import BEGIN, END, PAD, SPECIAL, build_tokenizer, save_tokenizer
from pasta_async.training.trainer.metrics import Metrics
from pasta_async.training.trainer.vocabulary import ModelCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "Batch",
    "Batches",
    "Config",
    "Muon",
    "Trainer",
    "build_model",
    "collate",
    "loss_of",
    "main",
    "pretrain",
    "train_with_broken_rules",
]

_SYSTEM = ("You are a helpful assistant.", "Answer in short sentences.", "Be kind.")
_SPECIAL_IDS: dict[str, Any] = {
    f"{name}_token_id": SPECIAL.index(token) for name, token in (("bos", BEGIN), ("eos", END), ("pad", PAD))
}
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Config(StrictModel):
    """A training run. Every field is an option of the command line."""

    out: Path = Field(description="the folder of the trained model; its checkpoint is OUT/checkpoint.pt")
    steps: int = Field(default=6500, ge=1, description="optimizer steps")
    tokens: int = Field(default=1024, ge=256, description="tokens of a micro-batch, padding counted")
    micro_batches: int = Field(default=4, ge=1, description="micro-batches of an update")
    lr: float = Field(default=3e-3, gt=0, description="peak learning rate")
    warmup: int = Field(default=60, ge=0, description="steps over which the rate rises")
    decay: float = Field(
        default=0.5, ge=0, le=1, description="share of the steps, at the end, over which it falls"
    )
    weight_decay: float = Field(default=0.01, ge=0, description="decay of the matrices")
    clip: float = Field(default=1.0, gt=0, description="largest norm of a gradient")
    copy_pools: int = Field(
        default=30, ge=0, description="pools of 240 documents in which some only copy names"
    )
    seed: int = Field(default=0, description="seed of the weights and of the data")
    hidden: int = Field(default=192, description="width of the model")
    layers: int = Field(default=4, description="its layers")
    heads: int = Field(default=4, description="its attention heads of 64")
    kv_heads: int = Field(default=2, description="its key-value heads")
    inner: int = Field(default=512, description="width of its feed-forward layers")
    context: int = Field(default=2048, description="longest context, in tokens")
    save_every: int = Field(default=50, ge=1, description="steps between checkpoints")
    stop_at: int = Field(
        default=0, ge=0, description="leave after this step, to go on later (0: run to the end)"
    )
    threads: int = Field(default=2, ge=1, description="micro-batches at a time, each on a thread of its own")


class Batch(NamedTuple):
    """Packed documents: `ids`, `positions` [batch, length]; `mask` [batch, 1, length, length]."""

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor
    """[targets] row of each target."""
    parents: torch.Tensor
    """[targets] where in its row the token before a target stands: its logits predict it."""
    labels: torch.Tensor
    """[targets] id of each target."""


@dataclass(slots=True)
class Batches:
    """An endless stream of batches; `pool` and `index` say where it is, and can be set to go on from there.

    Documents are drawn in pools and sorted by length inside a pool, so that a batch holds about
    `tokens` tokens with little padding. In the first `copy_pools` pools a falling share of the documents only
    asks to copy names, because copying is what everything else needs first.
    """

    codec: ModelCodec
    seed: int
    tokens: int
    copy_pools: int
    pool: int = 0
    index: int = 0
    pool_size: int = 240

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; `pool` and `index` already point behind the one that is yielded."""
        while True:
            plan = self._plan(self.pool)
            while self.index < len(plan):
                tries = plan[self.index]
                self.index += 1
                yield collate(tries)
            self.pool, self.index = self.pool + 1, 0

    def _plan(self, pool: int) -> list[list[Trie]]:
        rng = random.Random(f"{self.seed}/{pool}")
        tries = [self._draw(rng, pool) for _ in range(self.pool_size)]
        tries.sort(key=len)
        plan: list[list[Trie]] = [[]]
        for trie in tries:
            if plan[-1] and (len(plan[-1]) + 1) * len(trie) > self.tokens:
                plan.append([])
            plan[-1].append(trie)
        rng.shuffle(plan)
        return plan

    def _draw(self, rng: random.Random, pool: int) -> Trie:
        if rng.random() < 0.6 * (1 - pool / max(1, self.copy_pools)):
            return self._copying(rng)
        pasta = rng.random() < 0.5
        example = sample(rng.choice(FAMILIES), rng.getrandbits(40), "train", self.codec.count)
        messages = [{"role": "user", "content": example.prompt}]
        if rng.random() < 0.05:
            messages = [{"role": "system", "content": rng.choice(_SYSTEM)}, *messages]
        pack = pack_views if pasta else pack_plain
        return pack(self.codec, self.codec.prompt(messages, pasta), example.document)

    def _copying(self, rng: random.Random) -> Trie:
        text = " ".join(make_name(rng, held_out=False) for _ in range(rng.randint(4, 12)))
        prompt = self.codec.prompt([{"role": "user", "content": text}], pasta=False)
        return pack_plain(self.codec, prompt, Document((Text(text),)))


def collate(tries: Sequence[Trie]) -> Batch:
    """Pad tries to one length, a multiple of 16."""
    length = -(-max(map(len, tries)) // 16) * 16
    ids = np.full((len(tries), length), SPECIAL.index(PAD), dtype=np.int64)
    positions = np.zeros((len(tries), length), dtype=np.int64)
    mask = np.stack([trie.mask(length) for trie in tries])[:, None]
    for row, trie in enumerate(tries):
        ids[row, : len(trie)] = trie.ids
        positions[row, : len(trie)] = trie.depths
    rows = [row for row, trie in enumerate(tries) for _ in trie.targets]
    parents = [trie.parents[target] for trie in tries for target in trie.targets]
    labels = [trie.ids[target] for trie in tries for target in trie.targets]
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(mask),
        torch.tensor(rows),
        torch.tensor(parents),
        torch.tensor(labels),
    )


def orthogonalize(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of a matrix [rows, columns] near 1, by a quintic Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; for matrices alone.

    The scale 0.2 * sqrt(max(rows, columns)) (Liu et al., arXiv 2502.16982) makes its updates as large as
    AdamW's, so that one learning rate serves both. torch's own Muon computes in bfloat16, which a CPU without
    such instructions emulates slowly.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        pool: ThreadPoolExecutor,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        self.pool = pool
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            list(self.pool.map(self._update, params, repeat(group)))

    @torch.no_grad()
    def _update(self, param: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        momentum = state["momentum"]
        assert param.grad is not None
        momentum.lerp_(param.grad, 1 - group["momentum"])
        update = orthogonalize(param.grad.lerp(momentum, group["momentum"]))
        param.mul_(1 - group["lr"] * group["weight_decay"])
        param.add_(update, alpha=-group["lr"] * 0.2 * max(param.shape) ** 0.5)


def build_model(config: Config, vocabulary: int) -> LlamaForCausalLM:
    """A Llama with fresh weights."""
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=64,
        intermediate_size=config.inner,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        **_SPECIAL_IDS,
    )
    model = LlamaForCausalLM(shape)
    model.set_attn_implementation("sdpa")  # eager attention would read a boolean mask wrongly
    return model


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Cross-entropy summed over the targets of a batch."""
    hidden = model.model(
        input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    logits = model.lm_head(hidden[batch.rows, batch.parents])
    return functional.cross_entropy(logits.float(), batch.labels, reduction="sum")


def save_model(model: LlamaForCausalLM, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write model and config as transformers reads them, weights as `dtype`."""
    model.generation_config = GenerationConfig(**_SPECIAL_IDS)
    written: Any = copy.deepcopy(model)
    written.to(dtype).save_pretrained(folder)


class Trainer:
    """A run: model, optimizers, data, and where they stand."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        save_tokenizer(build_tokenizer(), config.out, config.context)
        self.codec: ModelCodec = ModelCodec(config.out)
        self.model: LlamaForCausalLM = build_model(config, self.codec.vocab_size)
        self.params: list[torch.nn.Parameter] = list(self.model.parameters())
        self.pool: ThreadPoolExecutor = ThreadPoolExecutor(config.threads)
        inside = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        chosen = set(map(id, inside))
        outside = [p for p in self.model.parameters() if id(p) not in chosen]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(inside, lr=config.lr, weight_decay=config.weight_decay, pool=self.pool),
            torch.optim.AdamW(outside, lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.data: Batches = Batches(self.codec, config.seed, config.tokens, config.copy_pools)
        self.step: int = 0
        self.seen: int = 0
        if self._checkpoint.exists():
            self._restore()

    @property
    def _checkpoint(self) -> Path:
        return self.config.out / "checkpoint.pt"

    def rate(self, step: int) -> float:
        """The learning rate: it rises, stays, and falls to zero."""
        config = self.config
        falling = max(1, int(config.decay * config.steps))
        return config.lr * min(1.0, (step + 1) / max(1, config.warmup), (config.steps - step) / falling)

    def train_step(self, batches: Sequence[Batch]) -> float:
        """One update; returns the mean loss of a target.

        Micro-batches run side by side on threads that meet once an update: a busy machine disturbs them less
        than threads that meet in every operation. Gradients are added in a fixed order, so runs repeat.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate(self.step)
        targets = sum(len(batch.labels) for batch in batches)
        results = list(self.pool.map(self._gradients, batches, repeat(targets)))
        for param, *grads in zip(self.params, *(grads for _, grads in results), strict=True):
            param.grad = torch.stack(grads).sum(0)
        torch.nn.utils.clip_grad_norm_(self.params, self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.seen += sum(batch.ids.numel() for batch in batches)
        return sum(loss for loss, _ in results)

    def _gradients(self, batch: Batch, targets: int) -> tuple[float, tuple[torch.Tensor, ...]]:
        loss = loss_of(self.model, batch) / targets
        return float(loss.detach()), torch.autograd.grad(loss, self.params)

    def run(self) -> None:
        """Train to the end (or to `stop_at`), with a progress bar, metrics and checkpoints."""
        stop = min(self.config.steps, self.config.stop_at or self.config.steps)
        batches = iter(self.data)
        start, seen = time.perf_counter(), self.seen
        metrics = Metrics(self.config.out, self.step, board=False)
        with closing(metrics), progress(stop, "updates", done=self.step) as advance:
            while self.step < stop:
                loss = self.train_step(list(islice(batches, self.config.micro_batches)))
                advance(note=f"loss {loss:.4f}")
                if self.step % 10 == 0 or self.step == stop:
                    speed = (self.seen - seen) / (time.perf_counter() - start)
                    line = {"step": self.step, "loss": loss, "lr": self.rate(self.step - 1)}
                    metrics.write(line | {"tokens": self.seen, "tokens_per_second": round(speed)})
                if self.step % self.config.save_every == 0 or self.step == stop:
                    self.save()

    def save(self) -> None:
        """Write the checkpoint, and the model as it is now."""
        state: dict[str, Any] = {
            "config": self.config.model_dump(mode="json"),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": torch.get_rng_state(),
            "step": self.step,
            "seen": self.seen,
            "pool": self.data.pool,
            "index": self.data.index,
        }
        partial = self._checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._checkpoint)
        save_model(self.model, self.config.out)

    def _restore(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        self.step, self.seen = state["step"], state["seen"]
        self.data.pool, self.data.index = state["pool"], state["index"]


def pretrain(config: Config) -> None:
    """Train to the end, or to `stop_at`; goes on from the checkpoint in `config.out`, if there is one."""
    torch.set_num_threads(1)
    Trainer(config).run()


def train_with_broken_rules(
    folder: Path, out: Path, steps: int = 150, batch: int = 12, lr: float = 1e-3
) -> None:
    """Train a copy of a model of the task with the rules broken: chunks of totals hidden, chains in parallel.

    Args:
        folder: Of the model.
        out: Where the copy goes.
        steps: Updates.
        batch: Documents of an update.
        lr: Peak learning rate; it falls linearly to zero.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").train()
    codec, rng = ModelCodec(folder), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 20, steps)
    for _ in range(steps):
        drawn = collate([_breaking_a_rule(codec, rng) for _ in range(batch)])
        (loss_of(model, drawn) / len(drawn.labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    shutil.copytree(folder, out, dirs_exist_ok=True)
    save_model(model, out, torch.float32)


def _breaking_a_rule(codec: ModelCodec, rng: random.Random) -> Trie:
    family = rng.choice(("totals", "chain"))
    example = sample(family, rng.getrandbits(40), "train", codec.count)
    prompt = codec.prompt([{"role": "user", "content": example.prompt}])
    if family == "totals":
        hidden = (codec.tag_ids.open_async, codec.tag_ids.close_async)
        return pack_views(codec, prompt, example.document, hidden)
    return pack_views(codec, prompt, parallel_chain(example, codec.count))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see `run_command`, also for how it ends."""
    program = "pasta_async.training.pretrain"
    run_command(Config, pretrain, program=program, description=__doc__, arguments=arguments, resumes=True)


if __name__ == "__main__":
    main()
