"""Write the card of a recipe's model: `python -m pasta_async.training.card RESULTS RUN STEP`."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_async.training.evaluate import Row, table, wilson
from pasta_async.training.synthetic import FAMILIES, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["card", "main"]

_HEAD = """\
---
license: apache-2.0
language: en
library_name: transformers
tags: [pasta-lang, parallel-decoding]
---

# pasta-tiny

A Llama of 2.0 million parameters that writes PASTA-LANG (docs/language.md): it marks the independent parts
of its answer while it writes, so that they can be decoded at the same time. It was trained from scratch on a
synthetic task in which the facts stand in the prompt, and it can do that task and nothing else: five kinds
of request, in English, about names that may be entirely new to it. It is there to show, to test and to
measure parallel decoding on any machine. Do not use it for anything that matters.

One model writes both forms. Its chat template has a switch: `pasta=true` (the default) asks for PASTA-LANG,
`pasta=false` for the plain baseline, an answer without a tag.

## How it was made

    python -m pasta_async.training.run pasta-tiny --only evaluation/{step} --out runs/pasta-tiny

A base model that knows both forms ({updates:,} updates on {tokens:,} tokens, padding counted), then stage 1
on answers of an annotator that goes by looks, then stage 2: the model's own samples, and their scores. It is
`{step}` of the recipe's sweep; docs/training.md has what each stage does, and why it is this one.
All prompts and answers are drawn from seeds by a program; no text from elsewhere is in it.
The files are the usual ones of Hugging Face: `LlamaForCausalLM`, weights as float16 (the results below are
of exactly these weights, computed with as float32), {vocabulary:,} tokens, a context of {context:,}.

## What it can answer

Facts come in any of the wordings of training, as sentences or as a list; 2 to 4 things a prompt. Examples,
one for each family, with names that were never in training:

{examples}
## Results

Greedy decoding. *Right* means that a program found every fact of the prompt in the answer: present, correct,
in its place, and no other. *names*: no name of the prompt is in training. *templates*: the wording of the
request is not in training. {prompts} prompts in each row; intervals are Wilson's at 95%.

{overall}

{rows}

Tokens: generated tokens an answer, tags and end-of-text counted. Critical path: the longest chain of tokens
that had to be decoded one after another. Theoretical speed-up, baseline's tokens over the critical path:
{speedups}.

### What the rules are worth

A copy of the model was trained for 150 more updates with the rules broken, and measured on unseen names:
*chunks hidden* (main goes on behind a sync without seeing the chunks) and *forced parallel* (each step of a
chain becomes a promise, so its chunk cannot see the step before). Compare with the rows of *parallel* above.

{ablations}

## Limits

- Numbers are small (sums to about 45), and names are best made of plain syllables.
- Wordings far from the templates of training, other tasks and other languages give nonsense.
- Held-out templates word the request anew; the facts keep the wordings of training. New wordings do not cost
  the same: the table above has the weakest family.
"""


def card(rows: Sequence[Row], step: str, base: dict[str, int], ablations: str, config: dict[str, int]) -> str:
    """The card, in Markdown.

    Args:
        rows: What `evaluate` found.
        step: The step of the recipe that made the model.
        base: The last row of the base model's metrics.
        ablations: What `ablate` printed.
        config: The model's.
    """
    plain = [row for row in rows if row.form in ("parallel", "baseline")]
    return _HEAD.format(
        step=step,
        updates=base["step"],
        tokens=base["tokens"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        examples=_examples(),
        prompts=rows[0].prompts,
        overall=_overall(plain),
        rows=table(plain),
        speedups=_speedups(plain),
        ablations=ablations.strip(),
    )


def _examples() -> str:
    quoted: list[str] = []
    for family in FAMILIES:
        prompt = next(
            example.prompt
            for example in (sample(family, seed, "names") for seed in range(100))
            if "\n" not in example.prompt and len(example.prompt) < 260
        )
        quoted.append(f"- *{family}*: {prompt}\n")
    return "".join(quoted)


def _overall(rows: Iterable[Row]) -> str:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        for key in ((row.split, row.form), ("all", row.form)):
            for place, value in enumerate((row.prompts, row.right, row.well_formed)):
                sums[key][place] += value
    lines = [
        "| held out | form | prompts | right | 95% interval | well-formed |",
        "|---|---|---|---|---|---|",
    ]
    for (split, form), (prompts, right, formed) in sorted(
        sums.items(), key=lambda item: (item[0][0] == "all", item[0])
    ):
        low, high = wilson(right, prompts)
        lines.append(
            f"| {split} | {form} | {prompts} | {right / prompts:.1%} | {low:.1%} to {high:.1%} "
            f"| {formed / prompts:.1%} |"
        )
    return "\n".join(lines)


def _speedups(rows: Sequence[Row]) -> str:
    found: list[str] = []
    for family in dict.fromkeys(row.family for row in rows):
        baseline = sum(row.generated for row in rows if row.family == family and row.form == "baseline")
        critical = sum(row.critical for row in rows if row.family == family and row.form == "parallel")
        found.append(f"{family} {baseline / critical:.2f}")
    return ", ".join(found)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="pasta_async.training.card", description=__doc__)
    parser.add_argument("results", type=Path, help="what evaluate wrote with --json")
    parser.add_argument("run", type=Path, help="folder of the recipe's run")
    parser.add_argument("step", help="the step that made the model: round2/lambda4")
    parser.add_argument("--ablations", type=Path, required=True, help="what ablate printed")
    args = parser.parse_args(argv)
    rows = [Row(**row) for row in json.loads(args.results.read_text())]
    base = json.loads((args.run / "base" / "metrics.jsonl").read_text().splitlines()[-1])
    model = args.run / args.step / "model"
    config = json.loads((model / "config.json").read_text())
    (model / "README.md").write_text(card(rows, args.step, base, args.ablations.read_text(), config))


if __name__ == "__main__":
    main()
