"""A model as one point of speed and quality, against another one that writes no tags.

    python -m pasta_async.evals.frontier --backend local:BASELINE/model --out results/baseline
    python -m pasta_async.evals.frontier --backend local:MODEL --baseline results/baseline --out results/model

The first command measures the sequential baseline: a model that was trained on the same data without tags.
The second measures a model against its answers: theoretical and length-matched speed-up and wall clock, how
good the answers are, how long, and how many of them are parallel. `pasta_async.training.run` gives both.
"""
