"""The mask of a row for the attention kernel at hand, and a refusal of what would be wrong.

A dense boolean mask is exact with SDPA. Eager attention *adds* a mask, so with a boolean one it computes
something else without a word; FlexAttention takes block masks only, and has no backward pass on a CPU; Flash
attention takes no such mask at all. And without any mask, transformers reads positions that do not rise as a
sign of packed sequences and cuts them apart.
"""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from pasta_async.training.trainer.tree import Row

__all__ = ["block_mask", "check_mask", "choose_attention", "mask_for"]

FLEX, SDPA = "flex_attention", "sdpa"


def choose_attention(wanted: str, device: torch.device) -> str:
    """The kernel for a device: `"auto"` is FlexAttention on CUDA, SDPA elsewhere.

    Raises:
        InvalidRequestError: A kernel that cannot train on such masks there.
    """
    if wanted == "auto":
        return FLEX if device.type == "cuda" else SDPA
    if wanted not in (FLEX, SDPA):
        raise InvalidRequestError(
            f"attention {wanted!r} cannot read the mask of packed views: choose {SDPA} or {FLEX}"
        )
    if wanted == FLEX and device.type != "cuda":
        raise InvalidRequestError(
            f"{FLEX} has no backward pass on {device.type}: choose {SDPA}, or a CUDA device"
        )
    return wanted


def block_mask(row: Row) -> BlockMask:
    """The mask for FlexAttention, which skips the blocks in which nothing is seen."""
    ends = row.ends

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[key])

    length = len(ends)
    return create_block_mask(seen, None, None, length, length, device=str(ends.device))


def mask_for(model: Any, row: Row) -> torch.Tensor | BlockMask:
    """The mask of a row in the form that the model's attention reads.

    Raises:
        InvalidRequestError: The model's attention reads neither form.
    """
    kernel: str = model.config._attn_implementation  # transformers has no public name for it
    mask = block_mask(row) if kernel == FLEX else row.mask()
    check_mask(kernel, mask, row.ids.device)
    return mask


def check_mask(kernel: str, mask: torch.Tensor | BlockMask | None, device: torch.device) -> None:
    """Refuse a mask that this kernel would read wrongly, or die of.

    Args:
        kernel: transformers' name of the attention.
        mask: What is about to be passed as `attention_mask`.
        device: Where the model is.

    Raises:
        InvalidRequestError: With the reason, and what to use.
    """
    kind = "no mask" if mask is None else "a block mask" if isinstance(mask, BlockMask) else "a dense mask"
    boolean = isinstance(mask, torch.Tensor) and mask.dtype == torch.bool
    why = None
    if mask is None:
        why = "packed views need one: without it, positions that do not rise are cut into sequences"
    elif kernel == FLEX and not isinstance(mask, BlockMask):
        why = "FlexAttention reads block masks only, and a dense one ends the process on a CPU"
    elif kernel == FLEX and device.type != "cuda":
        why = "FlexAttention has no backward pass there"
    elif kernel == SDPA and isinstance(mask, BlockMask):
        why = "SDPA reads dense masks only"
    elif kernel == "eager" and (boolean or isinstance(mask, BlockMask)):
        why = "eager attention adds its mask to the scores, so a boolean one hides nothing"
    elif kernel not in (FLEX, SDPA, "eager"):
        why = "this attention cannot read the mask of packed views"
    if why:
        raise InvalidRequestError(
            f"attention {kernel!r} with {kind} on {device.type}: {why}. "
            f"Use {SDPA} with a boolean mask, or {FLEX} with a block mask on CUDA."
        )
