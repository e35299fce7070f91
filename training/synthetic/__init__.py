"""A task with an open vocabulary: the facts stand in the prompt, and a program decides quality.

    example = sample("totals", seed=7, split="names")
    example.prompt                            # what a user types
    example.document                          # the right answer, annotated
    score(example, example.document.text)     # True

Nothing here needs torch.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pasta_async.training.synthetic import chain, describe, fair, offers, totals, words
from pasta_async.training.synthetic.scoring import grade, score
from pasta_async.training.synthetic.writing import Example, Split, Template

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAMILIES", "Example", "Split", "Template", "grade", "sample", "score", "templates"]

_MODULES: dict[str, Any] = {
    "describe": describe,
    "totals": totals,
    "offers": offers,
    "chain": chain,
    "fair": fair,
}
FAMILIES: tuple[str, ...] = tuple(_MODULES)
"""The families, by name."""


@cache
def templates(family: str, split: Split) -> tuple[Template, ...]:
    """The templates that a split draws from; those of `templates` are in no other split."""
    module = _MODULES[family]
    frames: tuple[str, ...] = module.HELD_OUT_FRAMES if split == "templates" else module.FRAMES
    return tuple(Template(frame, *fact) for frame in frames for fact in module.FACTS)


def sample(
    family: str,
    seed: int,
    split: Split = "train",
    count_tokens: Callable[[str], int] | None = None,
) -> Example:
    """Draw one example.

    Args:
        family: One of `FAMILIES`.
        seed: The same seed, family and split always give the same example.
        split: Which names and which templates.
        count_tokens: Measures a chunk for its estimate; by default a rough count of words and syllables.

    Raises:
        ValueError: There is no such family or split.
    """
    if family not in _MODULES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    if split not in ("train", "names", "templates"):
        raise ValueError(f"no split {split!r}; there are train, names, templates")
    rng = random.Random(f"{family}/{split}/{seed}")
    template = rng.choice(templates(family, split))
    if split != "templates":
        template = _with_small_talk(rng, template)
    draft = _MODULES[family].draft(rng, template, split == "names")
    return Example(
        family=family,
        split=split,
        seed=seed,
        prompt=draft.prompt,
        document=draft.plan.document(count_tokens or _rough_count),
        facts=draft.plan.facts,
        names=tuple(draft.names),
    )


def _with_small_talk(rng: random.Random, template: Template) -> Template:
    """Words around the request: with a few dozen bare frames, a model learns where in each a fact stands."""
    opening = rng.choice(words.OPENINGS) if rng.random() < 0.5 else ""
    closing = rng.choice(words.CLOSINGS) if rng.random() < 0.5 else ""
    return replace(template, opening=opening, closing=closing)


def _rough_count(text: str) -> int:
    """About as many tokens as the shipped tokenizer makes of an answer (it has 1.3 a word)."""
    return int(1.4 * len(text.split()))
