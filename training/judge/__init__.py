"""A judge of answers that is trained on preferences, and what is known of how far it can be trusted.

`python -m pasta_async.training.judge` trains one; `--judge reward --judge-model OUT` names it
wherever a judge can be named. docs/evaluation.md describes it.
"""
