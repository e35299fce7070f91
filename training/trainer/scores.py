"""Log-probabilities of documents, from one forward pass over a packed row."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import functional

from pasta_async.training.trainer.attention import mask_for

if TYPE_CHECKING:
    import torch

    from pasta_async.training.trainer.tree import Row

__all__ = ["log_probabilities"]


def log_probabilities(model: Any, row: Row) -> torch.Tensor:
    """The log-probability of each tree's targets, summed: [trees], float32, with gradients.

    Equal to the sum over the document's views, each computed alone. Logits are computed where a target is
    predicted, and nowhere else.

    Raises:
        InvalidRequestError: The model's attention cannot read the row's mask.
    """
    logits = model(
        input_ids=row.ids,
        attention_mask=mask_for(model, row),
        position_ids=row.positions,
        use_cache=False,
        logits_to_keep=row.predictors,
    ).logits[0]
    lost = functional.cross_entropy(logits.float(), row.labels, reduction="none")
    return lost.new_zeros(row.trees).index_add(0, row.owners, -lost)
