"""A task with an open vocabulary: the facts stand in the prompt, and a program decides quality.

    example = sample("totals", seed=7, split="names")
    example.prompt                            # what a user types
    example.document                          # the right answer, annotated
    score(example, example.document.text)     # True

Nothing here needs torch.
"""

from pasta_async.training.synthetic.families import FAMILIES, Example, Split, grade, sample, score, templates

__all__ = ["FAMILIES", "Example", "Split", "grade", "sample", "score", "templates"]
