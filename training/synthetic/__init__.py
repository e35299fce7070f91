"""A task with an open vocabulary: the facts stand in the prompt, and a program decides quality.

    example = sample("totals", seed=7, split="names")
    example.prompt                            # what a user types
    example.document                          # the right answer, annotated
    score(example, example.document.text)     # True

Nothing here needs torch.
"""

from pasta_async.training.synthetic.examples import Example, Split, Template, grade, score
from pasta_async.training.synthetic.families import FAMILIES, sample, templates

__all__ = ["FAMILIES", "Example", "Split", "Template", "grade", "sample", "score", "templates"]
