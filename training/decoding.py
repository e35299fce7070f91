"""Greedy decoding of many threads at once, for evaluation: plain torch, with a KV cache.

Contexts of one call are padded on the left. Rows that end leave the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

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


def _batch(
    model: LlamaForCausalLM, contexts: Sequence[Sequence[int]], stops: Collection[int], limit: int
) -> list[list[int]]:
    longest = max(map(len, contexts))
    pads = [longest - len(context) for context in contexts]
    ids = torch.tensor([[0] * pad + list(context) for pad, context in zip(pads, contexts, strict=True)])
    seen = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    outputs: list[list[int]] = [[] for _ in contexts]
    live = torch.arange(len(contexts))
    cache = DynamicCache(config=model.config)
    for _ in range(limit):
        positions = (seen.cumsum(1) - 1).clamp(min=0)[:, -ids.size(1) :]
        hidden = model.model(
            input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        chosen = model.lm_head(hidden[:, -1]).argmax(-1)
        going: list[int] = []
        for row, (index, token) in enumerate(zip(live.tolist(), chosen.tolist(), strict=True)):
            outputs[index].append(token)
            if token not in stops:
                going.append(row)
        if not going:
            break
        if len(going) < len(live):
            kept = torch.tensor(going)
            cache.batch_select_indices(kept)
            live, seen, chosen = live[kept], seen[kept], chosen[kept]
        seen = torch.cat([seen, torch.ones(len(live), 1, dtype=seen.dtype)], dim=1)
        ids = chosen[:, None]
    return outputs
