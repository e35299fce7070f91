"""Greedy decoding of many threads at once, for evaluation: plain torch, with a KV cache.

Contexts of one call are padded on the left. Rows that end leave the batch once half of it has ended.
"""

# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import LlamaForCausalLM

__all__ = ["greedy"]


@torch.inference_mode()
def greedy(
    model: LlamaForCausalLM,
    contexts: Sequence[Sequence[int]],
    stops: Collection[int],
    limit: int,
    batch: int = 128,
) -> list[list[int]]:
    """Continue every context until a stop id (which is part of the result) or `limit` tokens."""
    order = sorted(range(len(contexts)), key=lambda index: len(contexts[index]))
    results: list[list[int]] = [[] for _ in contexts]
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        for index, ids in zip(
            chosen, _batch(model, [contexts[i] for i in chosen], stops, limit), strict=True
        ):
            results[index] = ids
    return results


class _Growing(DynamicLayer):
    """A layer's cache with room ahead, so that a step copies one token and not the whole past."""

    _room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, count = self.get_seq_length(), key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < start + count:
            shape = (*key_states.shape[:2], 2 * (start + count), key_states.shape[-1])
            room = (key_states.new_empty(shape), value_states.new_empty(shape))
            if self.keys is not None and self.values is not None and start:
                room[0][:, :, :start], room[1][:, :, :start] = self.keys, self.values
            self._room = room
        keys, values = self._room
        keys[:, :, start : start + count] = key_states
        values[:, :, start : start + count] = value_states
        self.keys, self.values = keys[:, :, : start + count], values[:, :, : start + count]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = None


def _batch(
    model: LlamaForCausalLM, contexts: Sequence[Sequence[int]], stops: Collection[int], limit: int
) -> list[list[int]]:
    longest = max(map(len, contexts))
    pads = [longest - len(context) for context in contexts]
    ids = torch.tensor([[0] * pad + list(context) for pad, context in zip(pads, contexts, strict=True)])
    seen = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    outputs: list[list[int]] = [[] for _ in contexts]
    live = list(range(len(contexts)))
    cache: Any = DynamicCache()
    cache.layers = [_Growing() for _ in range(model.config.num_hidden_layers)]
    for _ in range(limit):
        positions = (seen.cumsum(1) - 1).clamp(min=0)[:, -ids.size(1) :]
        hidden = model.model(
            input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        chosen = model.lm_head(hidden[:, -1]).argmax(-1)
        going: list[int] = []
        for row, (index, token) in enumerate(zip(live, chosen.tolist(), strict=True)):
            if not outputs[index] or outputs[index][-1] not in stops:
                outputs[index].append(token)
                if token not in stops:
                    going.append(row)
        if not going:
            break
        if 2 * len(going) <= len(live):
            kept = torch.tensor(going)
            cache.batch_select_indices(kept)
            live, seen, chosen = [live[row] for row in going], seen[kept], chosen[kept]
        seen = torch.cat([seen, torch.ones(len(live), 1, dtype=seen.dtype)], dim=1)
        ids = chosen[:, None]
    return outputs
