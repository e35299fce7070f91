"""Annotation: from plain answers to PASTA-LANG, by a model behind an endpoint or by structure alone.

    document = annotate_by_structure(answer)
    document.format()

`python -m pasta_async.training.annotate` annotates a file or a data set. docs/data.md describes it.
"""

from pasta_async.training.annotate.structure import LEAST, Cut, annotate_by_structure

__all__ = ["LEAST", "Cut", "annotate_by_structure"]
