"""Evaluate a model on held-out prompts: `python -m pasta_async.training.evaluate MODEL`.

Greedy, both forms, every family; unseen names and unseen templates apart; two ablations. Writes JSON and
prints a table in Markdown.
"""

# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from transformers import LlamaForCausalLM

from pasta_async.evals.statistics import wilson
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.training.ablations import forced_parallel_mains
from pasta_async.training.answers import decode_pasta, decode_plain
from pasta_async.training.synthetic import FAMILIES, sample, score
from pasta_async.training.tokenizer import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.answers import Answer
    from pasta_async.training.synthetic import Example, Split

__all__ = ["Row", "evaluate", "load", "main", "table", "wilson"]

Form = Literal["parallel", "baseline", "chunks hidden", "forced parallel"]
_TAGS = frozenset(TAG_TOKENS)


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one form on one family and split."""

    family: str
    split: Split
    form: Form
    prompts: int
    right: int
    well_formed: int
    critical: int
    """Tokens on the critical path, summed."""
    generated: int
    """Tokens generated, summed."""
    promises: int


def load(folder: Path) -> tuple[LlamaForCausalLM, Codec]:
    """Load a model folder; weights are computed with as float32."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval(), Codec.load(folder)


def evaluate(
    model: LlamaForCausalLM,
    codec: Codec,
    family: str,
    split: Split,
    form: Form,
    count: int,
    first_seed: int = 0,
) -> tuple[Row, list[tuple[Example, str, bool]]]:
    """Answer `count` prompts; returns the figures, and each example with its answer and verdict."""
    examples = [sample(family, first_seed + i, split, codec.count) for i in range(count)]
    answers = _answers(model, codec, examples, form)
    texts = [visible_text(codec, answer) for answer in answers]
    verdicts = [score(example, text) for example, text in zip(examples, texts, strict=True)]
    row = Row(
        family,
        split,
        form,
        count,
        sum(verdicts),
        sum(answer.well_formed for answer in answers),
        sum(answer.critical for answer in answers),
        sum(answer.generated for answer in answers),
        sum(answer.chunks for answer in answers),
    )
    return row, list(zip(examples, texts, verdicts, strict=True))


def _answers(model: LlamaForCausalLM, codec: Codec, examples: Sequence[Example], form: Form) -> list[Answer]:
    prompts = [example.prompt for example in examples]
    if form == "baseline":
        return decode_plain(model, codec, prompts)
    if form == "forced parallel":
        return decode_pasta(model, codec, prompts, forced_mains=forced_parallel_mains(codec, examples))
    return decode_pasta(model, codec, prompts, hide_chunks=form == "chunks hidden")


def visible_text(codec: Codec, answer: Answer) -> str:
    """What a reader sees of an answer: text without tags and attributes."""
    tags = {codec.special(tag) for tag in TAG_TOKENS}
    opens, closes = codec.special(TAG_TOKENS[0]), codec.special(TAG_TOKENS[2])
    ids: list[int] = []
    inside = False
    for token in answer.written:
        inside = token == opens or (inside and token != closes)
        if not inside and token not in tags:
            ids.append(token)
    return codec.decode(ids)


def table(rows: Sequence[Row]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| family | held out | form | prompts | right | 95% interval | well-formed "
        "| tokens | critical path |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = wilson(row.right, row.prompts)
        lines.append(
            f"| {row.family} | {row.split} | {row.form} | {row.prompts} | {row.right / row.prompts:.1%} "
            f"| {low:.1%} to {high:.1%} | {row.well_formed / row.prompts:.1%} "
            f"| {row.generated / row.prompts:.1f} | {row.critical / row.prompts:.1f} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="pasta_async.training.evaluate", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=500, help="of each family, split and form")
    parser.add_argument("--splits", nargs="+", default=["names", "templates"])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--no-ablations", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--show-wrong", type=int, default=0, help="print so many wrong answers of each row")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model, codec = load(args.model)
    rows: list[Row] = []
    for family in args.families:
        for split in args.splits:
            for form in _forms(family, not args.no_ablations):
                row, answers = evaluate(model, codec, family, split, form, args.prompts)
                rows.append(row)
                print(table([row]).splitlines()[-1], flush=True)
                wrong = [(example, text) for example, text, right in answers if not right]
                for example, text in wrong[: args.show_wrong]:
                    print(f"  PROMPT {example.prompt}\n  ANSWER {text}\n  RIGHT  {example.document.text}")
    print("\n" + table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _forms(family: str, ablations: bool) -> list[Form]:
    forms: list[Form] = ["parallel", "baseline"]
    if ablations and family in ("totals", "offers"):
        forms.append("chunks hidden")
    if ablations and family == "chain":
        forms.append("forced parallel")
    return forms


if __name__ == "__main__":
    main()
