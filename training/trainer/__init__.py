"""What both training stages share: base models, packed rows, the loop, checkpoints, metrics, export.

A stage brings a `Task`: examples made of trees, and a loss of their log-probabilities. The rest is here.
"""
